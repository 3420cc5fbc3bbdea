package main

import (
	"fmt"
	"time"

	"github.com/Shopify/sarama"
)

// sarama sends what the version of Kafka that it is told knows.
type saramaClient struct{ sarama.Consumer }

func newSarama(told task) (saramaClient, error) {
	config := sarama.NewConfig()
	config.Consumer.Return.Errors = true
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	if told.isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	var err error
	if config.Version, err = sarama.ParseKafkaVersion(told.version); err != nil {
		return saramaClient{}, err
	}
	consumer, err := sarama.NewConsumer([]string{told.bootstrap}, config)
	return saramaClient{consumer}, err
}

func (c saramaClient) read(wanted partitionRange, timeout time.Duration, take func(record) bool) error {
	partition, err := c.ConsumePartition(wanted.topic, int32(wanted.partition), wanted.start)
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
