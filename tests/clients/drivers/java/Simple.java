// The Scala client of 0.8.2 without ZooKeeper: its simple consumer. With a group it goes on at the group's offsets and
// commits what it has told: at version 0 or 1 of OffsetCommit and OffsetFetch, which --version says.
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import kafka.api.FetchRequestBuilder;
import kafka.api.PartitionOffsetRequestInfo;
import kafka.common.OffsetAndMetadata;
import kafka.common.OffsetMetadataAndError;
import kafka.common.TopicAndPartition;
import kafka.javaapi.FetchResponse;
import kafka.javaapi.OffsetCommitRequest;
import kafka.javaapi.OffsetCommitResponse;
import kafka.javaapi.OffsetFetchRequest;
import kafka.javaapi.OffsetRequest;
import kafka.javaapi.OffsetResponse;
import kafka.javaapi.TopicMetadata;
import kafka.javaapi.TopicMetadataRequest;
import kafka.javaapi.consumer.SimpleConsumer;
import kafka.message.MessageAndOffset;

public class Simple {
    static final int FETCH_BYTES = 1 << 20;
    static final String CLIENT = "simple";
    static final short NONE = 3; // the error of OffsetFetch v0 for a partition without an offset

    public static void main(String[] arguments) {
        Task task = new Task(arguments);
        String[] address = task.bootstrap.split(":");
        SimpleConsumer consumer = new SimpleConsumer(address[0], Integer.parseInt(address[1]), 60_000, 1 << 16, CLIENT);
        for (Task.Range range : task.ranges) {
            checkLeader(consumer, range, Integer.parseInt(address[1]));
            read(task, consumer, range, start(task, consumer, range));
        }
        consumer.close();
    }

    private static void read(Task task, SimpleConsumer consumer, Task.Range range, long start) {
        long next = start;
        while (task.isReading(range) && !task.isDone()) {
            FetchResponse response = consumer.fetch(new FetchRequestBuilder().clientId(CLIENT).maxWait(100).minBytes(1)
                .addFetch(range.topic, range.partition, next, FETCH_BYTES).build());
            check("fetch", response.errorCode(range.topic, range.partition));
            for (MessageAndOffset found : response.messageSet(range.topic, range.partition)) {
                if (found.offset() >= next) { // a wrapper has earlier ones, too
                    next = found.nextOffset();
                    task.record(range.topic, range.partition, found.offset(), bytes(found.message().key()),
                        bytes(found.message().payload()), null);
                }
            }
            commit(task, consumer, range, next);
        }
    }

    private static long start(Task task, SimpleConsumer consumer, Task.Range range) {
        TopicAndPartition partition = new TopicAndPartition(range.topic, range.partition);
        if (task.time() != null) {
            Map<TopicAndPartition, PartitionOffsetRequestInfo> asked = new HashMap<>();
            asked.put(partition, new PartitionOffsetRequestInfo(task.time(), 1));
            OffsetResponse response = consumer.getOffsetsBefore(new OffsetRequest(asked, (short) 0, CLIENT));
            check("offsets", response.errorCode(range.topic, range.partition));
            return response.offsets(range.topic, range.partition)[0];
        }
        if (task.option("group") == null) {
            return range.start;
        }
        OffsetMetadataAndError found = consumer.fetchOffsets(new OffsetFetchRequest(task.option("group"),
            new ArrayList<>(Arrays.asList(partition)), version(task), 0, CLIENT)).offsets().get(partition);
        if (version(task) == 0 && found.error() == NONE) {
            return range.start;
        }
        check("fetch of offsets", found.error());
        return found.offset() == -1 ? range.start : found.offset();
    }

    private static void commit(Task task, SimpleConsumer consumer, Task.Range range, long next) {
        if (task.option("group") == null) {
            return;
        }
        TopicAndPartition partition = new TopicAndPartition(range.topic, range.partition);
        Map<TopicAndPartition, OffsetAndMetadata> offsets = new HashMap<>();
        offsets.put(partition, new OffsetAndMetadata(next, "a note", -1L));
        OffsetCommitResponse response = consumer.commitOffsets(
            new OffsetCommitRequest(task.option("group"), offsets, 0, CLIENT, version(task)));
        check("commit", ((Number) response.errors().get(partition)).shortValue());
    }

    private static void checkLeader(SimpleConsumer consumer, Task.Range range, int port) {
        List<TopicMetadata> topics = consumer.send(
            new TopicMetadataRequest(Collections.singletonList(range.topic))).topicsMetadata();
        check("metadata", topics.get(0).errorCode());
        int found = topics.get(0).partitionsMetadata().get(range.partition).leader().port();
        if (found != port) {
            throw new IllegalStateException("expected a leader at port " + port + ", found " + found);
        }
    }

    private static short version(Task task) {
        return Short.parseShort(task.option("version"));
    }

    private static void check(String what, short error) {
        if (error != 0) {
            throw new IllegalStateException(what + ": error " + error);
        }
    }

    private static byte[] bytes(ByteBuffer buffer) {
        if (buffer == null) {
            return null;
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }
}
