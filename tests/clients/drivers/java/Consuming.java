// Kafka's Java consumer, from 0.9 on. It is compiled against each release; what only some have is called by reflection.
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

public class Consuming {
    static final long POLL_MS = 200;

    public static void main(String[] arguments) throws Exception {
        Task task = new Task(arguments);
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings(task));
        if (task.option("group") == null) {
            read(task, consumer);
        } else {
            follow(task, consumer);
        }
        consumer.close();
    }

    private static Properties settings(Task task) {
        String deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        Properties settings = new Properties();
        settings.put("bootstrap.servers", task.bootstrap);
        settings.put("key.deserializer", deserializer);
        settings.put("value.deserializer", deserializer);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("fetch.max.wait.ms", "50");
        if (task.option("group") != null) {
            settings.put("group.id", task.option("group"));
        }
        if (task.option("isolation") != null) {
            settings.put("isolation.level", task.option("isolation"));
        }
        if (task.option("protocol") != null) {
            settings.put("group.protocol", task.option("protocol"));
        }
        return settings;
    }

    private static void read(Task task, KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        List<TopicPartition> partitions = new ArrayList<>();
        for (Task.Range range : task.ranges) {
            partitions.add(new TopicPartition(range.topic, range.partition));
        }
        consumer.assign(partitions);
        for (Task.Range range : task.ranges) {
            TopicPartition partition = new TopicPartition(range.topic, range.partition);
            consumer.seek(partition, task.time() == null ? range.start : offsetAt(consumer, partition, task.time()));
        }
        while (!task.isDone()) {
            tell(task, poll(consumer));
            for (Task.Range range : task.ranges) {
                long position = consumer.position(new TopicPartition(range.topic, range.partition));
                task.reached(range.topic, range.partition, position);
            }
        }
    }

    private static void follow(Task task, KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        consumer.subscribe(task.topics());
        while (!task.isDone()) {
            ConsumerRecords<byte[], byte[]> records = poll(consumer);
            tell(task, records);
            try {
                if (!records.isEmpty()) {
                    consumer.commitSync();
                }
                for (TopicPartition partition : consumer.assignment()) { // which others may have read to the end
                    task.reached(partition.topic(), partition.partition(), consumer.position(partition));
                }
            } catch (KafkaException failure) { // the group has to be joined again, which poll does
                System.err.println(failure);
            }
        }
    }

    private static void tell(Task task, ConsumerRecords<byte[], byte[]> records) throws Exception {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            Long timestamp = null;
            try {
                timestamp = (Long) ConsumerRecord.class.getMethod("timestamp").invoke(record);
            } catch (NoSuchMethodException before10) {
                // it has none
            }
            task.record(record.topic(), record.partition(), record.offset(), record.key(), record.value(),
                timestamp == null || timestamp == -1 ? null : timestamp);
        }
    }

    // poll(Duration) since 2.0; poll(long) up to 3.9.
    @SuppressWarnings("unchecked")
    private static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        Object polled;
        try {
            polled = KafkaConsumer.class.getMethod("poll", Duration.class).invoke(consumer, Duration.ofMillis(POLL_MS));
        } catch (NoSuchMethodException before2) {
            polled = KafkaConsumer.class.getMethod("poll", long.class).invoke(consumer, POLL_MS);
        }
        return (ConsumerRecords<byte[], byte[]>) polled;
    }

    // Since 0.10.1.
    private static long offsetAt(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long time)
            throws Exception {
        Method offsetsForTimes = KafkaConsumer.class.getMethod("offsetsForTimes", Map.class);
        Map<?, ?> found = (Map<?, ?>) offsetsForTimes.invoke(consumer, Collections.singletonMap(partition, time));
        Object offset = found.get(partition);
        return (Long) offset.getClass().getMethod("offset").invoke(offset);
    }
}
