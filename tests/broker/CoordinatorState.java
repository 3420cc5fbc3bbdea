import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.*;
import java.util.function.BooleanSupplier;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.*;

/**
 * Leaves groups and transactions of every kind in a broker, and prints what its admin API tells of them:
 *
 * java CoordinatorState.java ADDRESS PREFIX KIND...
 *
 * All names begin with PREFIX. KIND is classic, consumer or share. The JVM is halted at the end, so that members stay in
 * their groups, and the open transaction stays open. Prints one JSON object.
 */
public class CoordinatorState {
    static final int PARTITIONS = 3;
    static final Duration POLL = Duration.ofMillis(100);
    static final long SECONDS = 120;

    static String address, prefix;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        prefix = arguments[1];
        var kinds = List.of(arguments).subList(2, arguments.length);
        admin = Admin.create(config());
        if (kinds.contains("consumer")) enableFeatures();
        String topic = prefix + "orders";
        produce(topic);
        List<String> groups = new ArrayList<>();
        if (kinds.contains("classic")) groups.add(join("classic", topic));
        if (kinds.contains("consumer")) groups.add(join("consumer", topic));
        commit(prefix + "simple", topic, 5);
        groups.add(prefix + "simple");
        commit(prefix + "deleted", topic, 5);
        admin.deleteConsumerGroups(List.of(prefix + "deleted")).all().get();
        commit(prefix + "forgotten", topic, 5);
        admin.deleteConsumerGroupOffsets(prefix + "forgotten", Set.of(new TopicPartition(topic, 1))).all().get();
        groups.add(prefix + "forgotten");
        transactions(topic);
        groups.add(prefix + "eos");
        Map<String, Object> told = new TreeMap<>();
        told.put("groups", describeGroups(groups));
        told.put("offsets", listOffsets(groups));
        told.put("transactions", describeTransactions());
        told.put("producers", describeProducers(topic));
        if (kinds.contains("share")) told.put("share", share(topic));
        System.out.println(new ObjectMapper().writeValueAsString(told));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    /** The broker was formatted without the features of its groups and of KIP-890. */
    static void enableFeatures() throws Exception {
        var updates = new HashMap<String, FeatureUpdate>();
        for (var one : Map.of("group.version", 1, "share.version", 1, "streams.version", 1, "transaction.version", 2).entrySet())
            updates.put(one.getKey(), new FeatureUpdate(one.getValue().shortValue(), FeatureUpdate.UpgradeType.UPGRADE));
        var known = admin.describeFeatures().featureMetadata().get();
        updates.keySet().retainAll(known.supportedFeatures().keySet());
        for (var one : known.finalizedFeatures().entrySet())
            updates.computeIfPresent(one.getKey(), (name, update) ->
                update.maxVersionLevel() <= one.getValue().maxVersionLevel() ? null : update);
        if (!updates.isEmpty()) admin.updateFeatures(updates, new UpdateFeaturesOptions()).all().get();
    }

    static Map<String, Object> config(Object... more) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", address);
        for (int i = 0; i < more.length; i += 2) config.put((String) more[i], more[i + 1]);
        return config;
    }

    static void until(BooleanSupplier done) {
        long end = System.nanoTime() + SECONDS * 1_000_000_000L;
        while (!done.getAsBoolean())
            if (System.nanoTime() > end) throw new IllegalStateException("not in time");
    }

    static KafkaProducer<String, String> producer(Object... more) {
        return new KafkaProducer<>(config(more), new StringSerializer(), new StringSerializer());
    }

    static void produce(String topic) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
        try (var producer = producer()) {
            for (int i = 0; i < 30; i++) producer.send(new ProducerRecord<>(topic, i % PARTITIONS, "k" + i, "v" + i));
            producer.flush();
        }
    }

    /** Two members, the first of which is static. Each commits what it read. */
    static String join(String protocol, String topic) {
        String group = prefix + protocol;
        List<KafkaConsumer<String, String>> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            var config = config("group.id", group, "group.protocol", protocol, "auto.offset.reset", "earliest",
                "client.id", group + "-" + i, "client.rack", "rack-" + i, "enable.auto.commit", "false");
            if (i == 0) config.put("group.instance.id", group + "-static");
            var member = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
            member.subscribe(List.of(topic));
            members.add(member);
        }
        until(() -> {
            for (var member : members) member.poll(POLL);
            return members.stream().allMatch(one -> !one.assignment().isEmpty())
                && members.stream().mapToInt(one -> one.assignment().size()).sum() == PARTITIONS;
        });
        for (var member : members) {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (var one : member.assignment())
                offsets.put(one, new OffsetAndMetadata(4 + one.partition(), Optional.of(0), "metadata of " + one));
            member.commitSync(offsets);
        }
        MEMBERS.addAll(members);
        return group;
    }

    static final List<KafkaConsumer<String, String>> MEMBERS = new ArrayList<>();

    static void commit(String group, String topic, long offset) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (int i = 0; i < PARTITIONS; i++) offsets.put(new TopicPartition(topic, i), new OffsetAndMetadata(offset + i));
        admin.alterConsumerGroupOffsets(group, offsets).all().get();
    }

    static void transactions(String topic) throws Exception {
        try (var producer = producer("transactional.id", prefix + "empty")) {
            producer.initTransactions();
        }
        transact("commits", topic, 7, 1).commitTransaction();
        transact("aborts", topic, 9, 1).abortTransaction();
        transact("open", topic, 11, 2).flush();
    }

    static KafkaProducer<String, String> transact(String name, String topic, long offset, int partition) {
        var producer = producer("transactional.id", prefix + name, "transaction.timeout.ms", 600000);
        producer.initTransactions();
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, partition, null, name));
        producer.sendOffsetsToTransaction(
            Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset),
                new TopicPartition(topic, partition), new OffsetAndMetadata(offset)),
            new ConsumerGroupMetadata(prefix + "eos"));
        return producer;
    }

    static Map<String, Object> describeGroups(List<String> groups) throws Exception {
        Map<String, Object> told = new TreeMap<>();
        for (var group : admin.describeConsumerGroups(groups).all().get().values()) {
            List<Object> members = new ArrayList<>();
            for (var one : group.members())
                members.add(Map.of(
                    "member_id", one.consumerId(), "instance_id", one.groupInstanceId().orElse(""),
                    "client_id", one.clientId(), "client_host", one.host(),
                    "assigned", names(one.assignment().topicPartitions()), "epoch", one.memberEpoch().orElse(-1)));
            told.put(group.groupId(), Map.of(
                "type", group.type().toString(), "state", group.groupState().toString(), "assignor", group.partitionAssignor(),
                "members", members, "epoch", group.groupEpoch().orElse(-1)));
        }
        return told;
    }

    static List<String> names(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().toList();
    }

    static Map<String, Object> listOffsets(List<String> groups) throws Exception {
        Map<String, Object> told = new TreeMap<>();
        for (String group : groups) {
            Map<String, Object> offsets = new TreeMap<>();
            for (var one : admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().entrySet()) {
                if (one.getValue() == null) continue;
                var found = new ArrayList<Object>();
                found.add(one.getValue().offset());
                found.add(one.getValue().leaderEpoch().orElse(-1));
                found.add(one.getValue().metadata());
                offsets.put(one.getKey().toString(), found);
            }
            told.put(group, offsets);
        }
        return told;
    }

    static Map<String, Object> describeTransactions() throws Exception {
        List<String> ids = new ArrayList<>();
        for (var one : admin.listTransactions().all().get())
            if (one.transactionalId().startsWith(prefix)) ids.add(one.transactionalId());
        // Markers are written after the answer to the client.
        until(() -> {
            try {
                return admin.describeTransactions(ids).all().get().values().stream()
                    .noneMatch(one -> one.state().toString().startsWith("Prepare"));
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        Map<String, Object> told = new TreeMap<>();
        for (var one : admin.describeTransactions(ids).all().get().entrySet()) {
            var found = one.getValue();
            told.put(one.getKey(), Map.of(
                "state", found.state().toString(), "producer_id", found.producerId(), "epoch", found.producerEpoch(),
                "timeout_ms", found.transactionTimeoutMs(), "start", found.transactionStartTimeMs().orElse(-1),
                "partitions", names(found.topicPartitions())));
        }
        return told;
    }

    static Map<String, Object> describeProducers(String topic) throws Exception {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int i = 0; i < PARTITIONS; i++) partitions.add(new TopicPartition(topic, i));
        Map<String, Object> told = new TreeMap<>();
        for (var one : admin.describeProducers(partitions).all().get().entrySet())
            for (var state : one.getValue().activeProducers())
                if (state.currentTransactionStartOffset().isPresent())
                    told.put(one.getKey().toString(), List.of(
                        state.producerId(), state.producerEpoch(), state.currentTransactionStartOffset().getAsLong()));
        return told;
    }

    static Map<String, Object> share(String topic) throws Exception {
        String group = prefix + "share";
        var consumer = new KafkaShareConsumer<>(
            config("group.id", group, "client.id", group), new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        until(() -> {
            consumer.poll(POLL);
            try {
                return admin.describeShareGroups(List.of(group)).all().get().get(group).members().stream()
                    .anyMatch(one -> one.assignment().topicPartitions().size() == PARTITIONS);
            } catch (Exception error) {
                return false;
            }
        });
        var found = admin.describeShareGroups(List.of(group)).all().get().get(group);
        List<Object> members = new ArrayList<>();
        for (var one : found.members())
            members.add(Map.of("member_id", one.consumerId(), "client_id", one.clientId(), "client_host", one.host(),
                "assigned", names(one.assignment().topicPartitions()), "epoch", one.memberEpoch()));
        return Map.of("group", group, "state", found.groupState().toString(), "members", members,
            "epoch", found.groupEpoch());
    }
}
