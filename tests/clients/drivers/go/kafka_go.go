package main

import (
	"context"
	"time"

	kafka "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/gzip"
	"github.com/segmentio/kafka-go/lz4"
	"github.com/segmentio/kafka-go/snappy"
)

const maxFetchBytes = 1 << 20

// segmentio's kafka-go, which always sends Fetch v2.
type kafkaGo struct{ task }

func (c kafkaGo) read(wanted partitionRange, timeout time.Duration, take func(record) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	connection, err := kafka.DialLeader(ctx, "tcp", c.bootstrap, wanted.topic, wanted.partition)
	if err != nil {
		return err
	}
	defer connection.Close()
	start := wanted.start
	if !c.time.IsZero() {
		if start, err = connection.ReadOffset(c.time); err != nil {
			return err
		}
	}
	if _, err := connection.Seek(start, kafka.SeekAbsolute); err != nil {
		return err
	}
	if err := connection.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	for {
		batch := connection.ReadBatch(1, maxFetchBytes)
		for {
			m, err := batch.ReadMessage()
			if err != nil {
				break // what is wrong, or nothing but the end, the batch tells when it is closed
			}
			if take(record{Offset: m.Offset, Key: m.Key, Value: m.Value, Timestamp: milliseconds(m.Time)}) {
				return batch.Close()
			}
		}
		if err := batch.Close(); err != nil {
			return err
		}
	}
}

func (c kafkaGo) follow(topic string, timeout time.Duration, take func(record) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{c.bootstrap}, GroupID: c.group, Topic: topic, MinBytes: 1, MaxBytes: maxFetchBytes,
		MaxWait: 100 * time.Millisecond,
	})
	for {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		isLast := take(record{
			Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Key: m.Key, Value: m.Value,
			Timestamp: milliseconds(m.Time),
		})
		if err := reader.CommitMessages(ctx, m); err != nil {
			return err
		}
		if isLast {
			return reader.Close()
		}
	}
}

func (c kafkaGo) produce(topic string, keys, values []string, codec string) error {
	codecs := map[string]kafka.CompressionCodec{
		"gzip": gzip.NewCompressionCodec(), "snappy": snappy.NewCompressionCodec(), "lz4": lz4.NewCompressionCodec(),
	}
	writer := kafka.NewWriter(kafka.WriterConfig{
		Brokers: []string{c.bootstrap}, Topic: topic, BatchTimeout: 10 * time.Millisecond,
		CompressionCodec: codecs[codec],
		Balancer:         kafka.BalancerFunc(func(kafka.Message, ...int) int { return 0 }),
	})
	var messages []kafka.Message
	for number := range keys {
		messages = append(messages, kafka.Message{Key: []byte(keys[number]), Value: []byte(values[number])})
	}
	if err := writer.WriteMessages(context.Background(), messages...); err != nil {
		return err
	}
	return writer.Close()
}
