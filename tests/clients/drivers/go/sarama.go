package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/Shopify/sarama"
)

// sarama sends what the version of Kafka that it is told knows.
type saramaClient struct {
	task
	client sarama.Client
}

func saramaConfig(version string) (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Consumer.Return.Errors = true
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	var err error
	config.Version, err = sarama.ParseKafkaVersion(version)
	return config, err
}

func newSarama(told task) (saramaClient, error) {
	config, err := saramaConfig(told.version)
	if err != nil {
		return saramaClient{}, err
	}
	if told.isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	client, err := sarama.NewClient([]string{told.bootstrap}, config)
	return saramaClient{told, client}, err
}

func (c saramaClient) read(wanted partitionRange, timeout time.Duration, take func(record) bool) error {
	consumer, err := sarama.NewConsumerFromClient(c.client)
	if err != nil {
		return err
	}
	start := wanted.start
	if !c.time.IsZero() {
		at := c.time.UnixNano() / int64(time.Millisecond)
		if start, err = c.client.GetOffset(wanted.topic, int32(wanted.partition), at); err != nil {
			return err
		}
	}
	partition, err := consumer.ConsumePartition(wanted.topic, int32(wanted.partition), start)
	if err != nil {
		return err
	}
	defer partition.AsyncClose()
	expired := time.After(timeout)
	for {
		select {
		case m := <-partition.Messages():
			if take(record{Offset: m.Offset, Key: m.Key, Value: m.Value, Timestamp: milliseconds(m.Timestamp)}) {
				return nil
			}
		case failed := <-partition.Errors():
			return failed.Err
		case <-expired:
			return fmt.Errorf("the end was not reached in %v", timeout)
		}
	}
}

func (c saramaClient) follow(topic string, timeout time.Duration, take func(record) bool) error {
	group, err := sarama.NewConsumerGroupFromClient(c.group, c.client)
	if err != nil {
		return err
	}
	go func() {
		for range group.Errors() { // of members that join again
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	member := &saramaMember{take: take, stop: cancel}
	for !member.isDone {
		if err := group.Consume(ctx, []string{topic}, member); err != nil {
			return err
		}
		if ctx.Err() == context.DeadlineExceeded {
			return ctx.Err()
		}
	}
	return group.Close()
}

// A member of a group, whose partitions are read side by side.
type saramaMember struct {
	sync.Mutex
	take   func(record) bool
	stop   func()
	isDone bool
}

func (*saramaMember) Setup(sarama.ConsumerGroupSession) error { return nil }

func (*saramaMember) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (s *saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		s.Lock()
		if s.take(record{
			Topic: m.Topic, Partition: int(m.Partition), Offset: m.Offset, Key: m.Key, Value: m.Value,
			Timestamp: milliseconds(m.Timestamp),
		}) {
			s.isDone = true
			s.stop()
		}
		s.Unlock()
		session.MarkMessage(m, "")
	}
	return nil
}

type saramaProducer struct{ sarama.SyncProducer }

func newSaramaProducer(bootstrap, version, codec string) (saramaProducer, error) {
	config, err := saramaConfig(version)
	if err != nil {
		return saramaProducer{}, err
	}
	config.Producer.Compression = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4,
	}[codec]
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	return saramaProducer{producer}, err
}

func (p saramaProducer) produce(topic string, keys, values []string, _ string) error {
	var messages []*sarama.ProducerMessage
	for number := range keys {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(keys[number]), Value: sarama.StringEncoder(values[number]),
		})
	}
	if err := p.SendMessages(messages); err != nil {
		return err
	}
	return p.Close()
}
