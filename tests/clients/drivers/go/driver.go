// Go's clients of Kafka, each behind the interface of all drivers:
//
//	driver CLIENT BOOTSTRAP TOPIC:PARTITION:START:END... [--version V] [--isolation I] [--seconds N] [--time T]
//	driver CLIENT BOOTSTRAP TOPIC:PARTITION:START:END... [--version V] [--seconds N] --group G [--share]
//	driver produce CLIENT BOOTSTRAP TOPIC COUNT VERSION CODEC
//
// END is exclusive. Prints a line of JSON for each record, as driver.py beside this folder says, reads range after range,
// and fails with the client's error, or where a range takes too long. The member of a group ends as that says, too. A
// producer does what producer_driver.py says.
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
	time      time.Time     // where reading starts, if it is not zero
	group     string
	share     bool
}

type record struct {
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
	Offset    int64  `json:"offset"`
	Key       []byte `json:"key"`
	Value     []byte `json:"value"`
	Timestamp *int64 `json:"timestamp"`
}

// A client reads one range: it hands each record to take, until that says that it was the last. A member of a group
// subscribes to a topic, and commits what it has handed on.
type client interface {
	read(wanted partitionRange, timeout time.Duration, take func(record) bool) error
	follow(topic string, timeout time.Duration, take func(record) bool) error
}

// A producer sends records to partition 0, and returns once all are acknowledged.
type producer interface {
	produce(topic string, keys, values []string, codec string) error
}

func main() {
	if os.Args[1] == "produce" {
		produce(os.Args[2:])
		return
	}
	told := parse(os.Args[2:])
	reader, err := newClient(os.Args[1], told)
	exitOn(err)
	if told.group != "" {
		exitOn(reader.follow(told.ranges[0].topic, told.timeout, memberOf(told)))
		return
	}
	for _, wanted := range told.ranges {
		take := func(r record) bool {
			if r.Offset < wanted.end {
				r.Topic, r.Partition = wanted.topic, wanted.partition
				tell(r)
			}
			return r.Offset >= wanted.end-1
		}
		if err := reader.read(wanted, told.timeout, take); err != nil {
			exitOn(fmt.Errorf("%s-%d: %w", wanted.topic, wanted.partition, err))
		}
	}
}

func newClient(name string, told task) (client, error) {
	switch name {
	case "sarama":
		return newSarama(told)
	case "kafka-go":
		return kafkaGo{told}, nil
	}
	return nil, fmt.Errorf("no client is called %s", name)
}

// memberOf returns what takes the records of a member of a group: it says when the member has got its ranges.
func memberOf(told task) func(record) bool {
	ends := map[string]int64{}
	for _, wanted := range told.ranges {
		ends[fmt.Sprint(wanted.topic, wanted.partition)] = wanted.end
	}
	return func(r record) bool {
		tell(r)
		if r.Offset >= ends[fmt.Sprint(r.Topic, r.Partition)]-1 {
			delete(ends, fmt.Sprint(r.Topic, r.Partition))
		}
		return len(ends) == 0 || told.share && len(ends) < len(told.ranges)
	}
}

func produce(arguments []string) {
	name, bootstrap, topic, version, codec := arguments[0], arguments[1], arguments[2], arguments[4], arguments[5]
	var sender producer
	var err error
	switch name {
	case "sarama":
		sender, err = newSaramaProducer(bootstrap, version, codec)
	case "kafka-go":
		sender = kafkaGo{task{bootstrap: bootstrap}}
	default:
		err = fmt.Errorf("no client is called %s", name)
	}
	exitOn(err)
	var keys, values []string
	for number := int64(0); number < integer(arguments[3]); number++ {
		keys, values = append(keys, fmt.Sprintf("k%d", number)), append(values, fmt.Sprintf("v%d", number))
	}
	exitOn(sender.produce(topic, keys, values, codec))
}

func tell(r record) {
	exitOn(json.NewEncoder(os.Stdout).Encode(r))
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
		case "--group":
			i++
			told.group = arguments[i]
		case "--share":
			told.share = true
		case "--time":
			i++
			told.time = time.Unix(0, integer(arguments[i])*int64(time.Millisecond))
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
