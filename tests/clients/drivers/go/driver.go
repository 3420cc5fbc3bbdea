// Go's clients of Kafka, each behind the interface of all drivers:
//
//	driver CLIENT BOOTSTRAP TOPIC:PARTITION:START:END... [--version V] [--isolation I] [--seconds N]
//
// END is exclusive. Prints a line of JSON for each record, as driver.py beside this folder says, reads range after range,
// and fails with the client's error, or where a range takes too long.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const noTimestamp = -1

type partitionRange struct {
	topic      string
	partition  int
	start, end int64
}

type task struct {
	bootstrap string
	ranges    []partitionRange
	version   string
	isolation string
	timeout   time.Duration // of one range
}

type record struct {
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
	Offset    int64  `json:"offset"`
	Key       []byte `json:"key"`
	Value     []byte `json:"value"`
	Timestamp *int64 `json:"timestamp"`
}

// A client reads one range: it hands each record to take, until that says that it was the last.
type client interface {
	read(wanted partitionRange, timeout time.Duration, take func(record) bool) error
}

func main() {
	told := parse(os.Args[2:])
	var reader client
	var err error
	switch name := os.Args[1]; name {
	case "sarama":
		reader, err = newSarama(told)
	case "kafka-go":
		reader = kafkaGo{told.bootstrap}
	default:
		err = fmt.Errorf("no client is called %s", name)
	}
	exitOn(err)
	out := json.NewEncoder(os.Stdout)
	for _, wanted := range told.ranges {
		take := func(r record) bool {
			if r.Offset < wanted.end {
				r.Topic, r.Partition = wanted.topic, wanted.partition
				exitOn(out.Encode(r))
			}
			return r.Offset >= wanted.end-1
		}
		if err := reader.read(wanted, told.timeout, take); err != nil {
			exitOn(fmt.Errorf("%s-%d: %w", wanted.topic, wanted.partition, err))
		}
	}
}

func parse(arguments []string) task {
	told := task{isolation: "read_uncommitted", timeout: time.Minute}
	for i := 0; i < len(arguments); i++ {
		switch text := arguments[i]; text {
		case "--version":
			i++
			told.version = arguments[i]
		case "--isolation":
			i++
			told.isolation = arguments[i]
		case "--seconds":
			i++
			told.timeout = time.Duration(integer(arguments[i])) * time.Second
		default:
			if told.bootstrap == "" {
				told.bootstrap = text
			} else {
				told.ranges = append(told.ranges, parseRange(text))
			}
		}
	}
	return told
}

func parseRange(text string) partitionRange {
	part := strings.Split(text, ":")
	return partitionRange{part[0], int(integer(part[1])), integer(part[2]), integer(part[3])}
}

func milliseconds(t time.Time) *int64 {
	ms := t.UnixNano() / int64(time.Millisecond)
	if t.IsZero() || ms == noTimestamp {
		return nil
	}
	return &ms
}

func integer(text string) int64 {
	number, err := strconv.ParseInt(text, 10, 64)
	exitOn(err)
	return number
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
