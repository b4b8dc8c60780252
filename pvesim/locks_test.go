// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestCloneAndDestroyLock(t *testing.T) { simulated(t, testCloneAndDestroyLock) }

func testCloneAndDestroyLock(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "grown", "description", "mine", "full", "1")
	var partial map[string]any
	eventually(t, "the clone to be unlocked", func() bool {
		conf, _ := c.do("GET", "/nodes/pve1/qemu/300/config", "current", "1").Data.(map[string]any)
		if conf["ide2"] != nil && conf["scsi0"] == nil {
			partial = conf
		}
		return conf != nil && conf["lock"] == nil
	})
	g.Expect(partial).To(fields("description", "mine", "name", "grown", "lock", "clone"), "before all drives were copied")
	g.Expect(c.exit(upid)).To(Equal("OK"), "clone ended")
	g.Expect(strings.Count(fmt.Sprint(c.log(upid)), "(100.00%)")).To(Equal(2), "the copy of a disk that is not small reports its end twice")

	upid = c.ok("DELETE", "/nodes/pve1/qemu/300")
	seen := false
	eventually(t, "the VM to be deleted", func() bool {
		a := c.do("GET", "/nodes/pve1/qemu/300/config")
		if conf, _ := a.Data.(map[string]any); conf != nil && conf["lock"] == "destroyed" {
			seen = true
			g.Expect(conf).To(fields("description", nil, "smbios1", nil), "VM being destroyed still has its identity")
		}
		return a.Status != 200
	})
	g.Expect(seen).To(BeTrue(), "lock: destroyed was never visible")
	c.exit(upid)
}

func TestFileLockTimeout(t *testing.T) { simulated(t, testFileLockTimeout) }

func testFileLockTimeout(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	release, err := c.sim.HoldVMLock(context.Background(), "pve1", 101)
	g.Expect(err).NotTo(HaveOccurred())
	const text = "can't lock file '/var/lock/qemu-server/lock-101.conf' - got timeout"
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { c.refused(500, text, "PUT", "/nodes/pve1/qemu/101/config", "cores", "1") })
	}
	synctest.Wait() // the calls block for ten simulated seconds
	start := time.Now()
	c.ok("GET", "/nodes/pve1/qemu/101/status/current")
	g.Expect(time.Since(start)).To(BeNumerically(">=", 5*time.Second), "want calls to wait for a worker")
	wg.Wait()
	stop := c.ok("POST", "/nodes/pve1/qemu/101/status/stop")
	g.Expect(c.exit(stop)).To(Equal(text), "stop ended")
	g.Expect(c.log(stop)[0]).To(Equal("trying to acquire lock..."), "log does not mention the wait")
	stop = c.ok("POST", "/nodes/pve1/qemu/101/status/stop")
	release()
	g.Expect(c.exit(stop)).To(Equal("OK"), "stop ended")
}

func TestStorageLockStarvation(t *testing.T) { simulated(t, testStorageLockStarvation) }

func testStorageLockStarvation(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Storages = append(s.Storages, pvesim.Storage{ID: "ceph", Type: "rbd", Content: []string{"images"}, Size: pvesim.TiB})
	for i := range 14 {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 300 + i, Host: "pve1"})
	}
	// A slow cluster: each allocation holds the lock for most of a second, and all waiters poll once a second.
	s.Latency = map[string]string{"rbd": "ceph-slow"}
	g.Expect(pvesim.New(s, pvesim.Options{})).Error().To(HaveOccurred(), "unknown latency profile was accepted")
	s.Latency = nil
	c := startSim(t, s, pvesim.Options{})
	exits := make([]string, 14)
	var wg sync.WaitGroup
	for i := range exits {
		wg.Go(func() {
			exits[i] = c.ends("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/config", 300+i), "scsi0", "ceph:1", "scsi1", "ceph:1", "scsi2", "ceph:1")
		})
	}
	wg.Wait()
	const starved = "cfs-lock 'storage-ceph' error: got lock request timeout"
	g.Expect(exits).To(And(HaveEach(BeElementOf("OK", starved)), ContainElements("OK", starved)), "contention on a cluster-wide lock")
}

func TestCloneHostDown(t *testing.T) { simulated(t, testCloneHostDown) }

func testCloneHostDown(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	upid := c.ok("POST", "/nodes/pve2/qemu/9001/clone", "newid", "300", "full", "1")
	g.Expect(c.do("GET", "/nodes/pve1/tasks/"+url.PathEscape(upid.(string))+"/log").Raw).
		To(Equal(`{"data":{"n":1,"t":"unable to open file - No such file or directory"},"total":1}`), "log of a task of another host")
	eventually(t, "the clone to start", func() bool { return c.do("GET", "/nodes/pve2/qemu/300/config").Status == 200 })
	g.Expect(c.sim.HostDown("pve2", "refused")).To(Succeed())
	g.Expect(c.refused(595, "Connection refused", "GET", "/nodes/pve2/qemu/300/config").Raw).To(BeEmpty())
	g.Expect(c.sim.HostUp("pve2")).To(Succeed())
	g.Expect(c.config("pve2", 300)["lock"]).To(Equal("clone"))
	g.Expect(c.exit(upid)).To(Equal("unexpected status"), "task of the offline host ended")
	g.Expect(c.ends("DELETE", "/nodes/pve2/qemu/300")).To(Equal("VM is locked (clone)"), "destroy ended")
}

func TestCloneStopped(t *testing.T) { simulated(t, testCloneStopped) }

func testCloneStopped(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Guests[0].Config["scsi0"] = "local-lvm:base-9000-disk-0,size=200G"
	c := startSim(t, s, pvesim.Options{})
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "1").(string)
	eventually(t, "a volume to be created", func() bool {
		return c.do("GET", "/nodes/pve1/qemu/300/config").Status == 200 &&
			strings.Contains(fmt.Sprint(c.ok("GET", "/nodes/pve1/storage/local-lvm/content", "vmid", "300")), "vm-300-disk-0")
	})
	c.ok("DELETE", "/nodes/pve1/tasks/"+upid)
	g.Expect(c.exit(upid)).NotTo(Equal("OK"), "stopped task succeeded")
	g.Expect(c.do("GET", "/nodes/pve1/qemu/300/config").Status).To(Equal(500), "config still exists")
	g.Expect(c.ok("GET", "/nodes/pve1/storage/local-lvm/content", "vmid", "300")).To(BeEmpty(), "leaked volumes")
}

// With target and pool, the pool is set last: if that fails, the config remains on the target host, unlocked, but its
// volumes are deleted.
func TestClonePoolDeleted(t *testing.T) { simulated(t, testClonePoolDeleted) }

func testClonePoolDeleted(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(2)
	s.Storages = append(s.Storages, pvesim.Storage{ID: "nfs", Type: "nfs", Content: []string{"images"}, Size: pvesim.TiB})
	s.Pools = []pvesim.Pool{{ID: "kube"}}
	s.Guests[0].Config["scsi0"] = "nfs:9000/base-9000-disk-0.qcow2,size=40G"
	s.Guests[0].Config["ide2"] = "nfs:9000/vm-9000-cloudinit.qcow2,media=cdrom"
	c := asRoot(t, s)
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "1", "target", "pve2", "pool", "kube")
	eventually(t, "the copy to start", func() bool { return c.do("GET", "/nodes/pve1/qemu/300/config").Status == 200 })
	c.ok("DELETE", "/pools/kube")
	g.Expect(c.exit(upid)).To(HavePrefix("clone failed: can't add VM 300 to pool 'kube'"), "clone ended")
	conf := c.config("pve2", 300)
	g.Expect(conf).To(And(fields("lock", nil), HaveKey("scsi0")), "config on the target")
	g.Expect(c.ends("POST", "/nodes/pve2/qemu/300/status/start")).To(ContainSubstring("does not exist"), "start of a VM without volumes ended")
}

func TestTaskListDelay(t *testing.T) { simulated(t, testTaskListDelay) }

func testTaskListDelay(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Hosts[0].TaskListDelay = pvesim.Duration(2 * time.Second)
	c := startSim(t, s, pvesim.Options{})
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "0")
	g.Expect(c.exit(upid)).To(Equal("OK"))
	end, ok := c.sim.TaskEnd(upid.(string))
	g.Expect(ok).To(BeTrue())
	listed := func(path string) any { return row(c.ok("GET", path, "source", "all"), "upid", upid)["status"] }
	g.Expect(listed("/nodes/pve1/tasks")).To(Equal("RUNNING"), "the list shows the end late")
	time.Sleep(time.Until(end.Add(2 * time.Second)))
	g.Expect(listed("/nodes/pve1/tasks")).To(Equal("OK"))
}
