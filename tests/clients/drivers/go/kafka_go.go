package main

import (
	"context"
	"time"

	kafka "github.com/segmentio/kafka-go"
	_ "github.com/segmentio/kafka-go/gzip"
	_ "github.com/segmentio/kafka-go/lz4"
	_ "github.com/segmentio/kafka-go/snappy"
)

const maxFetchBytes = 1 << 20

// segmentio's kafka-go, which always sends Fetch v2.
type kafkaGo struct{ bootstrap string }

func (c kafkaGo) read(wanted partitionRange, timeout time.Duration, take func(record) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	connection, err := kafka.DialLeader(ctx, "tcp", c.bootstrap, wanted.topic, wanted.partition)
	if err != nil {
		return err
	}
	defer connection.Close()
	if _, err := connection.Seek(wanted.start, kafka.SeekAbsolute); err != nil {
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
