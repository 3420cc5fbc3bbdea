import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.ConsumerGroupMetadataKey;
import org.apache.kafka.coordinator.group.generated.ConsumerGroupMetadataValue;
import org.apache.kafka.coordinator.group.generated.OffsetCommitKey;
import org.apache.kafka.coordinator.group.generated.OffsetCommitValue;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.generated.ShareUpdateKey;
import org.apache.kafka.coordinator.share.generated.ShareUpdateValue;
import org.apache.kafka.coordinator.transaction.TransactionLog;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

/** Records as Kafka's own serializers frame them: a line has a name, and then bytes in base64. */
public final class Records {
    private static final Uuid ID = new Uuid(0, 7);
    private static final TopicIdPartition PLACE = new TopicIdPartition(ID, 3, "orders");

    private Records() { }

    public static void main(String[] arguments) {
        GroupCoordinatorRecordSerde groups = new GroupCoordinatorRecordSerde();
        CoordinatorRecord offset = CoordinatorRecord.record(
            new OffsetCommitKey().setGroup("g").setTopic("t").setPartition(3),
            new ApiMessageAndVersion(new OffsetCommitValue().setOffset(42).setMetadata("m"), (short) 3));
        print("offset", groups.serializeKey(offset), groups.serializeValue(offset));
        CoordinatorRecord group = CoordinatorRecord.record(
            new ConsumerGroupMetadataKey().setGroupId("g"),
            new ApiMessageAndVersion(new ConsumerGroupMetadataValue().setEpoch(4).setMetadataHash(9), (short) 0));
        print("group", groups.serializeKey(group), groups.serializeValue(group));
        ShareCoordinatorRecordSerde shares = new ShareCoordinatorRecordSerde();
        CoordinatorRecord share = CoordinatorRecord.record(
            new ShareUpdateKey().setGroupId("g").setTopicId(ID).setPartition(3),
            new ApiMessageAndVersion(new ShareUpdateValue().setSnapshotEpoch(5).setStateBatches(List.of()), (short) 0));
        print("share", shares.serializeKey(share), shares.serializeValue(share));
        print("transaction", TransactionLog.keyToBytes("payments"));
        print("commit", bytes(ControlRecordType.COMMIT.recordKey()),
            bytes(new EndTransactionMarker(ControlRecordType.COMMIT, 6).serializeValue()));
        print("topic", metadata(new TopicRecord().setName("orders").setTopicId(ID)));
        print("subscription", bytes(ConsumerProtocol.serializeSubscription(new Subscription(
            List.of("orders"), null, List.of(new TopicPartition("orders", 3)), 8, Optional.of("rack")))));
        print("assignment", bytes(ConsumerProtocol.serializeAssignment(new Assignment(
            List.of(new TopicPartition("orders", 3))))));
        RemoteLogSegmentId segment = new RemoteLogSegmentId(PLACE, ID);
        remote("segment", new RemoteLogSegmentMetadata(segment, 10, 20, 30, 1, 40, 50, Map.of(2, 10L), true));
        remote("update", new RemoteLogSegmentMetadataUpdate(
            segment, 60, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1));
        remote("delete", new RemotePartitionDeleteMetadata(
            PLACE, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 70, 1));
    }

    private static byte[] metadata(TopicRecord topic) {
        ApiMessageAndVersion record = new ApiMessageAndVersion(topic, (short) 0);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(record, cache));
        MetadataRecordSerde.INSTANCE.write(record, cache, new ByteBufferAccessor(buffer));
        return buffer.array();
    }

    private static void remote(String name, RemoteLogMetadata metadata) {
        print(name, new RemoteLogMetadataSerde().serialize(metadata));
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    private static void print(String name, byte[]... parts) {
        StringBuilder line = new StringBuilder(name);
        for (byte[] part : parts) {
            line.append(' ').append(Base64.getEncoder().encodeToString(part));
        }
        System.out.println(line);
    }
}
