// Prints the records of a topic up to its end as lines of JSON: reader SERVERS TOPIC
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func main() {
	topic := os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// By default aborted transactions are read, too.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// A fetch ends at once, so that the end of the topic is seen: the position may be past the last record.
		kgo.KeepControlRecords(),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	left := ends(ctx, client, topic)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if !record.Attrs.IsControl() {
				line, _ := json.Marshal([]any{record.Partition, record.Offset, text(record.Key), text(record.Value), pairs(record)})
				out.Write(append(line, '\n'))
			}
			if end, waits := left[record.Partition]; waits && record.Offset+1 >= end {
				delete(left, record.Partition)
			}
		})
	}
}

func text(data []byte) any {
	if data == nil {
		return nil
	}
	return hex.EncodeToString(data)
}

func pairs(record *kgo.Record) [][2]any {
	found := [][2]any{}
	for _, header := range record.Headers {
		found = append(found, [2]any{header.Key, text(header.Value)})
	}
	return found
}

// The ends of the partitions that have records.
func ends(ctx context.Context, client *kgo.Client, topic string) map[int32]int64 {
	metadata := kmsg.NewMetadataRequest()
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = &topic
	metadata.Topics = append(metadata.Topics, asked)
	answer, err := metadata.RequestWith(ctx, client)
	if err != nil {
		log.Fatal(err)
	}
	request := kmsg.NewListOffsetsRequest()
	request.IsolationLevel = 1
	place := kmsg.NewListOffsetsRequestTopic()
	place.Topic = topic
	for _, partition := range answer.Topics[0].Partitions {
		one := kmsg.NewListOffsetsRequestTopicPartition()
		one.Partition, one.Timestamp = partition.Partition, -1
		place.Partitions = append(place.Partitions, one)
	}
	request.Topics = append(request.Topics, place)
	offsets, err := request.RequestWith(ctx, client)
	if err != nil {
		log.Fatal(err)
	}
	found := map[int32]int64{}
	for _, partition := range offsets.Topics[0].Partitions {
		if partition.Offset > 0 {
			found[partition.Partition] = partition.Offset
		}
	}
	return found
}
