import java.io.*;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.requests.*;

/**
 * Makes a streams group (KIP-1071) by the requests of a member, which joins and leaves:
 *
 * java StreamsGroup.java HOST:PORT GROUP TOPIC
 *
 * Prints the type of the group, as the admin API tells it.
 */
public class StreamsGroup {
    static final long SECONDS = 60;
    static Socket socket;

    public static void main(String[] arguments) throws Exception {
        String address = arguments[0], group = arguments[1], topic = arguments[2];
        int colon = address.lastIndexOf(':');
        socket = new Socket(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
        try (var admin = Admin.create(Map.<String, Object>of("bootstrap.servers", address))) {
            enableFeature(admin);
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(); // waits for the coordinator
            String member = UUID.randomUUID().toString();
            heartbeat(group, member, 0, new StreamsGroupHeartbeatRequestData.Topology()
                .setEpoch(1)
                .setSubtopologies(List.of(new StreamsGroupHeartbeatRequestData.Subtopology()
                    .setSubtopologyId("0").setSourceTopics(List.of(topic)))));
            heartbeat(group, member, -1, null);
            for (var one : admin.listGroups().all().get())
                if (one.groupId().equals(group)) System.out.println(one.type().get());
        }
    }

    /** The broker was formatted without the feature. */
    static void enableFeature(Admin admin) throws Exception {
        var found = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("streams.version");
        if (found == null || found.maxVersionLevel() < 1)
            admin.updateFeatures(
                Map.of("streams.version", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)),
                new UpdateFeaturesOptions()).all().get();
    }

    static void heartbeat(String group, String member, int epoch, StreamsGroupHeartbeatRequestData.Topology topology)
            throws Exception {
        var data = new StreamsGroupHeartbeatRequestData().setGroupId(group).setMemberId(member).setMemberEpoch(epoch);
        if (topology != null)
            data.setTopology(topology).setRebalanceTimeoutMs(60_000).setProcessId(member).setClientTags(List.of())
                .setActiveTasks(List.of()).setStandbyTasks(List.of()).setWarmupTasks(List.of());
        var request = new StreamsGroupHeartbeatRequest.Builder(data).build((short) 0);
        long end = System.nanoTime() + SECONDS * 1_000_000_000L;
        while (true) {
            var answer = send(request).data();
            if (answer.errorCode() == 0) return;
            if (System.nanoTime() > end)
                throw new IllegalStateException("error " + answer.errorCode() + ": " + answer.errorMessage());
            Thread.sleep(200);
        }
    }

    static StreamsGroupHeartbeatResponse send(StreamsGroupHeartbeatRequest request) throws IOException {
        var header = new RequestHeader(ApiKeys.STREAMS_GROUP_HEARTBEAT, request.version(), "streams", 1);
        ByteBuffer bytes = request.serializeWithHeader(header);
        var out = new DataOutputStream(socket.getOutputStream());
        out.writeInt(bytes.remaining());
        out.write(bytes.array(), bytes.arrayOffset() + bytes.position(), bytes.remaining());
        out.flush();
        var in = new DataInputStream(socket.getInputStream());
        byte[] answer = new byte[in.readInt()];
        in.readFully(answer);
        return (StreamsGroupHeartbeatResponse) AbstractResponse.parseResponse(ByteBuffer.wrap(answer), header);
    }
}
