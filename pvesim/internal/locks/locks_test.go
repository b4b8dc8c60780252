// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package locks

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
)

const file = "/var/lock/x"

func take(t *testing.T, l *Table, mode Mode) func() {
	t.Helper()
	release, err := l.File(context.Background(), "pve1", file, mode, time.Second, nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return release
}

func TestFileLockModes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	l := New(clock.New(100))
	a, b := take(t, l, Shared), take(t, l, Shared)
	g.Expect(l.File(context.Background(), "pve1", file, Exclusive, time.Second, nil)).Error().
		To(MatchError("can't lock file '/var/lock/x' - got timeout"), "exclusive lock next to shared ones")
	release, err := l.File(context.Background(), "pve2", file, Exclusive, time.Second, nil)
	g.Expect(err).NotTo(HaveOccurred(), "the same file on another host")
	release()
	a()
	b()
	b() // has no effect the second time
	take(t, l, Exclusive)()
	g.Expect(l.files).To(BeEmpty(), "released locks remain in the table")
}

func TestFileLockQueue(t *testing.T) { synctest.Test(t, testFileLockQueue) }

func testFileLockQueue(t *testing.T) {
	l := New(clock.New(1))
	release := take(t, l, Exclusive)
	inside, most := atomic.Int32{}, atomic.Int32{}
	for range 20 {
		go func() {
			r := take(t, l, Exclusive)
			most.Store(max(most.Load(), inside.Add(1)))
			time.Sleep(time.Millisecond)
			inside.Add(-1)
			r()
		}()
	}
	synctest.Wait() // all wait for the lock
	start := time.Now()
	release()
	take(t, l, Exclusive)()
	if took := time.Since(start); most.Load() != 1 || took != 20*time.Millisecond {
		t.Errorf("%d held an exclusive lock at the same time, and all had it for %v, want 1 and 20ms", most.Load(), took)
	}
}

func TestFileLockCanceled(t *testing.T) {
	t.Parallel()
	l := New(clock.New(1))
	release := take(t, l, Exclusive)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	NewWithT(t).Expect(l.File(ctx, "pve1", file, Exclusive, 10*time.Second, nil)).Error().To(MatchError(context.Canceled))
	release()
	take(t, l, Exclusive)()
}

func TestClusterLock(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	l := New(clock.New(25))
	release, err := l.Cluster(context.Background(), "storage-ceph", 10*time.Second)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(l.Cluster(context.Background(), "storage-ceph", 3*time.Second)).Error().To(MatchError("cfs-lock 'storage-ceph' error: got lock request timeout"))
	release()
	again, err := l.Cluster(context.Background(), "storage-ceph", 3*time.Second)
	g.Expect(err).NotTo(HaveOccurred())
	again()
}
