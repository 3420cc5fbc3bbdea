import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.serialization.*;

/** Kafka's own clients, given one address: java Clients.java COMMAND ADDRESS TOPIC. Prints what it found, a line each. */
public class Clients {
    static final int PARTITIONS = 3, RECORDS = 30;
    static final Duration POLL = Duration.ofMillis(500);
    static final long SECONDS = 60;

    public static void main(String[] arguments) throws Exception {
        String address = arguments[1], topic = arguments[2];
        switch (arguments[0]) {
            case "admin" -> admin(address, topic);
            case "log-dirs" -> logDirs(address);
            case "share" -> share(address, topic);
            case "group" -> group(address, topic);
            case "transactions" -> transactions(address, topic);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    static Map<String, Object> config(String address, Object... more) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", address);
        for (int i = 0; i < more.length; i += 2) config.put((String) more[i], more[i + 1]);
        return config;
    }

    static void print(String name, Object found) {
        System.out.println(name + " " + found);
    }

    static KafkaProducer<String, String> producer(String address, Object... more) {
        return new KafkaProducer<>(config(address, more), new StringSerializer(), new StringSerializer());
    }

    static void produce(String address, String topic) throws Exception {
        try (var producer = producer(address)) {
            for (int i = 0; i < RECORDS; i++) producer.send(new ProducerRecord<>(topic, i % PARTITIONS, null, "v" + i));
            producer.flush();
        }
    }

    static void admin(String address, String topic) throws Exception {
        produce(address, topic);
        try (var admin = Admin.create(config(address))) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int i = 0; i < PARTITIONS; i++) partitions.add(new TopicPartition(topic, i));
            var nodes = admin.describeCluster().nodes().get();
            print("nodes", nodes.stream().map(Node::id).collect(Collectors.toCollection(TreeSet::new)));
            print("ports", nodes.stream().map(Node::port).collect(Collectors.toSet()).size());
            var leaders = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions();
            print("leaders", leaders.stream().map(one -> one.leader().id()).collect(Collectors.toList()));
            var ends = admin.listOffsets(partitions.stream().collect(Collectors.toMap(p -> p, p -> OffsetSpec.latest())));
            long end = 0;
            for (var one : ends.all().get().values()) end += one.offset();
            print("end", end);
            for (String group : List.of("java-a", "java-b", "java-c")) {
                admin.alterConsumerGroupOffsets(group, Map.of(partitions.get(0), new OffsetAndMetadata(1))).all().get();
            }
            var groups = new TreeSet<String>();
            for (var one : admin.listGroups().all().get()) if (one.groupId().startsWith("java-")) groups.add(one.groupId());
            print("groups", groups);
            print("described", new TreeSet<>(admin.describeConsumerGroups(groups).all().get().keySet()));
            var specs = groups.stream().collect(Collectors.toMap(g -> g, g -> new ListConsumerGroupOffsetsSpec()));
            print("offsets", new TreeMap<>(admin.listConsumerGroupOffsets(specs).all().get()).values().stream()
                .map(found -> found.get(partitions.get(0)).offset()).collect(Collectors.toList()));
            admin.deleteConsumerGroupOffsets("java-a", new TreeSet<>(java.util.Comparator.comparing(Object::toString)) {{
                add(partitions.get(0));
            }}).all().get();
            admin.deleteConsumerGroups(groups).all().get();
            List<ConfigResource> brokers = nodes.stream()
                .map(n -> new ConfigResource(ConfigResource.Type.BROKER, n.idString())).collect(Collectors.toList());
            var configs = admin.describeConfigs(brokers).all().get();
            var ids = new TreeSet<String>();
            for (var one : brokers) ids.add(one.name() + "=" + configs.get(one).get("node.id").value());
            print("configs", ids);
            Map<ConfigResource, Collection<AlterConfigOp>> changes = new HashMap<>();
            for (var one : brokers) changes.put(one, List.of(
                new AlterConfigOp(new ConfigEntry("log.cleaner.threads", "1"), AlterConfigOp.OpType.SET)));
            admin.incrementalAlterConfigs(changes).all().get();
            changes.clear();
            changes.put(new ConfigResource(ConfigResource.Type.TOPIC, topic), List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "-1"), AlterConfigOp.OpType.SET)));
            admin.incrementalAlterConfigs(changes).all().get();
            print("producers", admin.describeProducers(partitions).all().get().size());
            admin.deleteRecords(partitions.stream().collect(Collectors.toMap(p -> p, p -> RecordsToDelete.beforeOffset(5))))
                .all().get();
            var starts = admin.listOffsets(partitions.stream().collect(Collectors.toMap(p -> p, p -> OffsetSpec.earliest())));
            long start = 0;
            for (var one : starts.all().get().values()) start += one.offset();
            print("start", start);
            print("transactions", new TreeSet<>(admin.listTransactions().all().get().stream()
                .map(TransactionListing::transactionalId).collect(Collectors.toSet())).size() >= 0);
            print("quorum", admin.describeMetadataQuorum().quorumInfo().get().leaderId());
            print("features", admin.describeFeatures().featureMetadata().get().finalizedFeatures().isEmpty());
            print("elected", admin.electLeaders(ElectionType.PREFERRED, null).partitions().get()
                .values().stream().allMatch(Optional::isEmpty)); // none fails; a busy broker may have lost partitions
            print("reassignments", admin.listPartitionReassignments().reassignments().get().size());
            var entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "java"));
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity,
                List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1e9))))).all().get();
            // Brokers learn of quotas one after the other.
            while (admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().isEmpty()) Thread.onSpinWait();
            print("quotas", admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().containsKey(entity));
            print("resources", admin.listConfigResources().all().get().size() > 0);
            admin.createTopics(List.of(new NewTopic(topic + "-2", 3, (short) 1))).all().get();
            admin.createPartitions(Map.of(topic + "-2", NewPartitions.increaseTo(4))).all().get();
            admin.deleteTopics(List.of(topic + "-2")).all().get();
        }
    }

    static void logDirs(String address) throws Exception {
        try (var admin = Admin.create(config(address, "default.api.timeout.ms", 10000, "request.timeout.ms", 10000))) {
            var ids = admin.describeCluster().nodes().get().stream().map(Node::id).collect(Collectors.toList());
            var found = new TreeMap<>(admin.describeLogDirs(ids).allDescriptions().get());
            for (var one : found.entrySet()) print("log-dirs-" + one.getKey(), one.getValue().keySet());
        } catch (java.util.concurrent.ExecutionException error) {
            print("refused", error.getCause().getClass().getSimpleName());
        }
    }

    static void share(String address, String topic) throws Exception {
        String group = "share-" + topic;
        try (var admin = Admin.create(config(address))) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET))))
                .all().get();
        }
        var values = new TreeSet<String>();
        try (var consumer = new KafkaShareConsumer<>(
                config(address, "group.id", group, "share.acknowledgement.mode", "explicit"),
                new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            consumer.poll(POLL);
            produce(address, topic);
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            while (values.size() < RECORDS && System.nanoTime() < end) {
                for (var record : consumer.poll(POLL)) {
                    values.add(record.value());
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                var errors = consumer.commitSync().values().stream().filter(one -> one.isPresent()).toList();
                if (!errors.isEmpty()) print("errors", errors);
            }
        }
        print("values", values.size());
        try (var admin = Admin.create(config(address))) {
            print("state", admin.describeShareGroups(List.of(group)).all().get().get(group).groupState());
            var offsets = admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).all().get().get(group);
            print("offsets", offsets.size());
        }
    }

    static void group(String address, String topic) throws Exception {
        produce(address, topic);
        var values = new TreeSet<String>();
        try (var consumer = new KafkaConsumer<>(
                config(address, "group.id", "new-" + topic, "group.protocol", "consumer", "auto.offset.reset", "earliest"),
                new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            while (values.size() < RECORDS && System.nanoTime() < end)
                for (var record : consumer.poll(POLL)) values.add(record.value());
            consumer.commitSync();
            print("values", values.size());
        }
        try (var admin = Admin.create(config(address))) {
            var described = admin.describeConsumerGroups(List.of("new-" + topic)).all().get().get("new-" + topic);
            print("type", described.type());
        }
    }

    static void transactions(String address, String topic) throws Exception {
        for (String id : List.of("java-1", "java-2", "java-3", "java-4")) {
            try (var producer = producer(address, "transactional.id", id + topic)) {
                producer.initTransactions();
                for (boolean commits : new boolean[] {true, false}) {
                    producer.beginTransaction();
                    for (int i = 0; i < PARTITIONS; i++)
                        producer.send(new ProducerRecord<>(topic, i, null, (commits ? "committed" : "aborted") + id + i));
                    producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(commits ? 7 : 9)),
                        new ConsumerGroupMetadata("of-" + topic));
                    if (commits) producer.commitTransaction();
                    else producer.abortTransaction();
                }
            }
        }
        var values = new TreeSet<String>();
        try (var consumer = new KafkaConsumer<>(
                config(address, "isolation.level", "read_committed", "auto.offset.reset", "earliest"),
                new StringDeserializer(), new StringDeserializer())) {
            var partitions = new ArrayList<TopicPartition>();
            for (int i = 0; i < PARTITIONS; i++) partitions.add(new TopicPartition(topic, i));
            consumer.assign(partitions);
            var ends = consumer.endOffsets(partitions);
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            while (partitions.stream().anyMatch(one -> consumer.position(one) < ends.get(one)) && System.nanoTime() < end)
                for (var record : consumer.poll(POLL)) values.add(record.value());
        }
        print("committed", values.stream().filter(one -> one.startsWith("committed")).count());
        print("aborted", values.stream().filter(one -> one.startsWith("aborted")).count());
        try (var admin = Admin.create(config(address))) {
            print("offset", admin.listConsumerGroupOffsets("of-" + topic).partitionsToOffsetAndMetadata().get()
                .get(new TopicPartition(topic, 0)).offset());
            var found = new TreeSet<String>();
            for (var one : admin.listTransactions().all().get()) if (one.transactionalId().endsWith(topic)) found.add(one.transactionalId());
            print("listed", found.size());
            print("described", admin.describeTransactions(found).all().get().size());
        }
    }
}
