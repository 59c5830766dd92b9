package mq.oracle;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.remoting.protocol.body.HARuntimeInfo;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.HAClient;
import org.apache.rocketmq.store.ha.HAConnection;
import org.apache.rocketmq.store.ha.HAConnectionStateNotificationRequest;
import org.apache.rocketmq.store.ha.HAService;
import org.apache.rocketmq.store.ha.WaitNotifyObject;

/**
 * Replication to nobody: the store opens no socket. The library finds this class by the file
 * META-INF/service/org.apache.rocketmq.store.ha.HAService.
 */
public final class NoReplication implements HAService {
    private final AtomicInteger connectionCount = new AtomicInteger();
    private final AtomicLong pushedOffset = new AtomicLong();
    private final WaitNotifyObject waiters = new WaitNotifyObject();

    @Override
    public void init(DefaultMessageStore store) {
    }

    @Override
    public void start() {
    }

    @Override
    public void shutdown() {
    }

    @Override
    public void updateMasterAddress(String address) {
    }

    @Override
    public void updateHaMasterAddress(String address) {
    }

    @Override
    public int inSyncReplicasNums(long masterPutWhere) {
        return 1;
    }

    @Override
    public AtomicInteger getConnectionCount() {
        return connectionCount;
    }

    @Override
    public void putRequest(CommitLog.GroupCommitRequest request) {
    }

    @Override
    public void putGroupConnectionStateRequest(HAConnectionStateNotificationRequest request) {
    }

    @Override
    public List<HAConnection> getConnectionList() {
        return List.of();
    }

    @Override
    public HAClient getHAClient() {
        return null;
    }

    @Override
    public AtomicLong getPush2SlaveMaxOffset() {
        return pushedOffset;
    }

    @Override
    public HARuntimeInfo getRuntimeInfo(long masterPutWhere) {
        return new HARuntimeInfo();
    }

    @Override
    public WaitNotifyObject getWaitNotifyObject() {
        return waiters;
    }

    @Override
    public boolean isSlaveOK(long masterPutWhere) {
        return true;
    }
}
