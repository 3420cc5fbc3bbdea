// Kafka's Java producer, from 0.8.2 on: what producer_driver.py in the folder above says. Options: its codec, and
// "idempotent" or "transactional". A transactional one aborts a transaction of one record before its records.
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

public class Producing {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        String kind = arguments.length > 5 ? arguments[5] : "";
        boolean isTransactional = kind.equals("transactional");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings(arguments[0], arguments[4], kind));
        if (isTransactional) {
            call(producer, "initTransactions");
            call(producer, "beginTransaction");
            producer.send(new ProducerRecord<>(topic, 0, "aborted".getBytes(), "aborted".getBytes())).get();
            call(producer, "abortTransaction");
            call(producer, "beginTransaction");
        }
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            sent.add(producer.send(new ProducerRecord<>(topic, 0, ("k" + number).getBytes(), ("v" + number).getBytes())));
        }
        long next = sent.get(0).get().offset();
        for (Future<RecordMetadata> future : sent) {
            if (future.get().offset() != next++) {
                throw new IllegalStateException("expected offset " + (next - 1) + ", found " + future.get().offset());
            }
        }
        if (isTransactional) {
            call(producer, "commitTransaction");
        }
        producer.close();
    }

    private static Properties settings(String bootstrap, String codec, String kind) {
        String serializer = "org.apache.kafka.common.serialization.ByteArraySerializer";
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", serializer);
        settings.put("value.serializer", serializer);
        settings.put("compression.type", codec);
        settings.put("acks", "all");
        settings.put("linger.ms", "50");
        if (kind.equals("idempotent")) {
            settings.put("enable.idempotence", "true");
        } else if (kind.equals("transactional")) {
            settings.put("transactional.id", "transactional-" + ProcessHandle.current().pid());
        }
        return settings;
    }

    // Since 0.11.
    private static void call(KafkaProducer<byte[], byte[]> producer, String method) throws Exception {
        KafkaProducer.class.getMethod(method).invoke(producer);
    }
}
