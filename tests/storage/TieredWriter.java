// Writes segments as the tiered storage plugin of Aiven stores them, from the format's description. It shares no code
// with the reader under test. Usage: TieredWriter.java SPECIFICATION, a JSON file:
// {"target": folder, "segments": [{"source": path of a segment without its suffix, "prefix": of its keys, ...}, ...]}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.github.luben.zstd.ZstdCompressCtx;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.PublicKey;
import java.security.SecureRandom;
import java.security.spec.X509EncodedKeySpec;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;
import org.bouncycastle.jce.provider.BouncyCastleProvider;

public class TieredWriter {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final BouncyCastleProvider BOUNCY_CASTLE = new BouncyCastleProvider();

    public static void main(String[] arguments) throws Exception {
        JsonNode specification = JSON.readTree(Files.readAllBytes(Path.of(arguments[0])));
        for (JsonNode segment : specification.get("segments")) {
            new TieredWriter(segment).write(specification.get("target").asText() + "/" + segment.get("prefix").asText());
        }
    }

    private final JsonNode segment;
    private final byte[] dataKey = new byte[32];
    private final byte[] aad = new byte[32];
    private final ByteArrayOutputStream indexes = new ByteArrayOutputStream();

    private TieredWriter(JsonNode segment) {
        this.segment = segment;
        RANDOM.nextBytes(dataKey);
        RANDOM.nextBytes(aad);
    }

    private void write(String above) throws Exception {
        String stem = String.format("%s%s-%s/%d/%020d-%s", above, text("topic"), text("topicId"),
            segment.get("partition").asInt(), segment.get("startOffset").asLong(), text("segmentId"));
        Files.createDirectories(Path.of(stem).getParent());
        ObjectNode manifest = JSON.createObjectNode();
        manifest.put("version", "1");
        manifest.set("chunkIndex", writeLog(Path.of(stem + ".log")));
        manifest.set("segmentIndexes", writeIndexes(Path.of(stem + ".indexes")));
        manifest.put("compression", compressed());
        if (encrypted()) {
            ObjectNode encryption = manifest.putObject("encryption");
            encryption.put("dataKey", text("keyId") + ":" + base64(wrappedDataKey()));
            encryption.put("aad", base64(aad));
        }
        manifest.set("remoteLogSegmentMetadata", metadata());
        Files.write(Path.of(stem + ".rsm-manifest"), JSON.writeValueAsBytes(manifest));
    }

    private ObjectNode writeLog(Path target) throws Exception {
        byte[] log = Files.readAllBytes(Path.of(text("source") + ".log"));
        int chunkSize = segment.get("chunkSize").asInt();
        List<Integer> sizes = new ArrayList<>();
        ByteArrayOutputStream stored = new ByteArrayOutputStream();
        for (int start = 0; start == 0 || start < log.length; start += chunkSize) {
            byte[] chunk = Arrays.copyOfRange(log, start, Math.min(start + chunkSize, log.length));
            if (compressed()) {
                try (ZstdCompressCtx context = new ZstdCompressCtx()) {
                    context.setContentSize(true);
                    chunk = context.compress(chunk);
                }
            }
            chunk = encrypted() ? encrypt(chunk) : chunk;
            sizes.add(chunk.length);
            stored.write(chunk);
        }
        Files.write(target, stored.toByteArray());
        ObjectNode index = JSON.createObjectNode();
        index.put("type", compressed() ? "variable" : "fixed");
        index.put("originalChunkSize", chunkSize);
        index.put("originalFileSize", log.length);
        if (compressed()) {
            index.put("transformedChunks", base64(new ZstdCompressCtx().setContentSize(true).compress(encoded(sizes))));
        } else {
            index.put("transformedChunkSize", encrypted() ? chunkSize + 28 : chunkSize);
            index.put("finalTransformedChunkSize", sizes.get(sizes.size() - 1));
        }
        return index;
    }

    /** count, base, width, sizes less the base in `width` bytes without the last one, the last one in 4 bytes. */
    private static byte[] encoded(List<Integer> sizes) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeInt(sizes.size());
        if (sizes.size() > 1) {
            List<Integer> others = sizes.subList(0, sizes.size() - 1);
            int base = others.stream().min(Integer::compare).get();
            int most = others.stream().max(Integer::compare).get() - base;
            int width = most < 1 << 8 ? 1 : most < 1 << 16 ? 2 : most < 1 << 24 ? 3 : 4;
            out.writeInt(base);
            out.writeByte(width);
            for (int size : others) {
                out.write(ByteBuffer.allocate(4).putInt(size - base).array(), 4 - width, width);
            }
        }
        if (!sizes.isEmpty()) {
            out.writeInt(sizes.get(sizes.size() - 1));
        }
        return bytes.toByteArray();
    }

    private ObjectNode writeIndexes(Path target) throws Exception {
        ObjectNode found = JSON.createObjectNode();
        Path folder = Path.of(text("source")).getParent();
        addIndex(found, "offset", Path.of(text("source") + ".index"));
        addIndex(found, "timestamp", Path.of(text("source") + ".timeindex"));
        addIndex(found, "producerSnapshot", Path.of(text("snapshot")));
        addIndex(found, "leaderEpoch", folder.resolve("leader-epoch-checkpoint"));
        Path transactions = Path.of(text("source") + ".txnindex");
        if (Files.exists(transactions)) {
            addIndex(found, "transaction", transactions);
        } else {
            found.putNull("transaction");
        }
        Files.write(target, indexes.toByteArray());
        return found;
    }

    private void addIndex(ObjectNode found, String name, Path path) throws Exception {
        byte[] index = Files.exists(path) ? Files.readAllBytes(path) : new byte[0];
        byte[] stored = encrypted() && index.length > 0 ? encrypt(index) : index;
        found.putObject(name).put("position", indexes.size()).put("size", stored.length);
        indexes.write(stored);
    }

    private byte[] encrypt(byte[] bytes) throws Exception {
        byte[] nonce = new byte[12];
        RANDOM.nextBytes(nonce);
        Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
        cipher.init(Cipher.ENCRYPT_MODE, new SecretKeySpec(dataKey, "AES"), new GCMParameterSpec(128, nonce));
        cipher.updateAAD(aad);
        byte[] encrypted = cipher.doFinal(bytes);
        return ByteBuffer.allocate(12 + encrypted.length).put(nonce).put(encrypted).array();
    }

    private byte[] wrappedDataKey() throws Exception {
        String pem = Files.readString(Path.of(text("publicKey"))).replaceAll("-----[^-]*-----|\\s", "");
        PublicKey key = KeyFactory.getInstance("RSA").generatePublic(new X509EncodedKeySpec(Base64.getDecoder().decode(pem)));
        Cipher cipher = Cipher.getInstance("RSA/NONE/OAEPWithSHA3-512AndMGF1Padding", BOUNCY_CASTLE);
        cipher.init(Cipher.ENCRYPT_MODE, key);
        return cipher.doFinal(dataKey);
    }

    private ObjectNode metadata() {
        ObjectNode metadata = JSON.createObjectNode();
        ObjectNode id = metadata.putObject("remoteLogSegmentId");
        ObjectNode partition = id.putObject("topicIdPartition").put("topicId", text("topicId"));
        partition.putObject("topicPartition").put("topic", text("topic")).put("partition", segment.get("partition").asInt());
        id.put("id", text("segmentId"));
        metadata.put("startOffset", segment.get("startOffset").asLong());
        metadata.put("endOffset", segment.get("endOffset").asLong());
        metadata.put("maxTimestampMs", 1000000000L).put("brokerId", 2).put("eventTimestampMs", 2000000000L);
        metadata.set("segmentLeaderEpochs", segment.get("leaderEpochs"));
        return metadata;
    }

    private String text(String name) {
        return segment.get(name).asText();
    }

    private boolean compressed() {
        return segment.get("compressed").asBoolean();
    }

    private boolean encrypted() {
        return segment.has("keyId");
    }

    private static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
