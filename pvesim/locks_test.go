// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// dirScenario returns a cluster with one host with a template on a directory storage.
func dirScenario(version string) *pvesim.Scenario {
	s := pvesim.DefaultScenario(1)
	s.Version = version
	s.Guests[0].Config["scsi0"] = "local:9000/base-9000-disk-0.qcow2,size=3G"
	s.Guests[0].Config["ide2"] = "local:9000/vm-9000-cloudinit.qcow2,media=cdrom"
	return s
}

func TestCloneInParallel(t *testing.T) { simulated(t, testCloneInParallel) }

func testCloneInParallel(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	exits := make([]string, 8)
	var wg sync.WaitGroup
	for i := range exits {
		wg.Go(func() {
			exits[i] = c.exit(c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", fmt.Sprint(300+i), "full", "0"))
		})
	}
	wg.Wait()
	for i, e := range exits {
		if e != "OK" {
			t.Errorf("clone %d: %s", 300+i, e)
		}
	}
}

func TestCloneToSameVMID(t *testing.T) { simulated(t, testCloneToSameVMID) }

func testCloneToSameVMID(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	// The delay ensures that both calls arrive before the first task starts.
	if _, err := c.sim.AddFault(pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(15 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	responses := make([]response, 2)
	var wg sync.WaitGroup
	for i := range responses {
		wg.Go(func() {
			responses[i] = c.do("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", fmt.Sprintf("vm-%d", i))
		})
	}
	wg.Wait()
	won := -1
	for i, a := range responses {
		if a.Status != http.StatusOK {
			t.Fatalf("clone %d was rejected: %d %s", i, a.Status, a.Reason)
		}
		switch exit := c.exit(a.Data); exit {
		case "OK":
			won = i
		case "unable to create VM 300: config file already exists":
		default:
			t.Errorf("clone %d ended with %q", i, exit)
		}
	}
	if won < 0 {
		t.Fatal("neither clone succeeded")
	}
	if got := c.config("pve1", 300)["name"]; got != fmt.Sprintf("vm-%d", won) {
		t.Errorf("VM name is %v, but clone %d succeeded", got, won)
	}
}

func TestCloneLock(t *testing.T) { simulated(t, testCloneLock) }

func testCloneLock(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "grown", "description", "mine", "full", "1")
	states := map[string]map[string]any{}
	eventually(t, "the clone to be unlocked", func() bool {
		a := c.do("GET", "/nodes/pve1/qemu/300/config", "current", "1")
		conf, _ := a.Data.(map[string]any)
		switch {
		case conf == nil:
			return false
		case conf["lock"] == nil:
			return true
		case conf["scsi0"] != nil:
			states["both drives"] = conf
		case conf["ide2"] != nil:
			states["one drive"] = conf
		default:
			states["placeholder"] = conf
		}
		return false
	})
	if s := states["placeholder"]; s == nil || s["description"] != " qmclone temporary file" || s["name"] != nil {
		t.Errorf("placeholder: %v", s)
	}
	if s := states["one drive"]; s == nil || s["description"] != "mine" || s["name"] != "grown" || s["lock"] != "clone" {
		t.Errorf("after the first drive: %v", s)
	}
	if exit := c.exit(upid); exit != "OK" {
		t.Errorf("clone ended with %s", exit)
	}
}

func TestConfigWriteDuringClone(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]int{"8.4": 200, "9.2": 500} {
		runSimulated(t, version, func(t *testing.T) {
			c := startSim(t, dirScenario(version), pvesim.Options{})
			upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "1")
			eventually(t, "the config of the clone", func() bool { return c.do("GET", "/nodes/pve1/qemu/300/config").Status == 200 })
			a := c.do("PUT", "/nodes/pve1/qemu/300/config", "cores", "1")
			if a.Status != want || (want == 500 && a.Reason != "VM is locked (clone)") {
				t.Errorf("got %d %s", a.Status, a.Reason)
			}
			c.exit(upid)
		})
	}
}

func TestFileLockTimeout(t *testing.T) { simulated(t, testFileLockTimeout) }

func testFileLockTimeout(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	release, err := c.sim.HoldVMLock(context.Background(), "pve1", 300)
	if err != nil {
		t.Fatal(err)
	}
	const text = "can't lock file '/var/lock/qemu-server/lock-300.conf' - got timeout"
	c.refused(500, text, "PUT", "/nodes/pve1/qemu/300/config", "cores", "1")
	upid := c.ok("POST", "/nodes/pve1/qemu/300/status/start")
	if exit := c.exit(upid); exit != text {
		t.Errorf("start ended with %q", exit)
	}
	if log := c.log(upid); log[0] != "trying to acquire lock..." {
		t.Errorf("log does not mention the wait: %q", log)
	}
	destroy := c.ok("DELETE", "/nodes/pve1/qemu/300")
	release()
	if exit := c.exit(destroy); exit != "OK" {
		t.Errorf("destroy ended with %q after the lock was released", exit)
	}
}

func TestStorageLockStarvation(t *testing.T) { simulated(t, testStorageLockStarvation) }

func testStorageLockStarvation(t *testing.T) {
	s := pvesim.DefaultScenario(1)
	s.Storages = append(s.Storages, pvesim.Storage{ID: "ceph", Type: "rbd", Content: []string{"images"}, Size: pvesim.TiB})
	for i := range 14 {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 300 + i, Host: "pve1"})
	}
	// A slow cluster: each allocation holds the lock for most of a second, and all waiters poll once a second.
	s.Latency = map[string]string{"rbd": "ceph-slow"}
	if _, err := pvesim.New(s, pvesim.Options{}); err == nil {
		t.Fatal("unknown latency profile was accepted")
	}
	s.Latency = nil
	c := startSim(t, s, pvesim.Options{})
	exits := make([]string, 14)
	var wg sync.WaitGroup
	for i := range exits {
		wg.Go(func() {
			exits[i] = c.exit(c.ok("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/config", 300+i), "scsi0", "ceph:1", "scsi1", "ceph:1", "scsi2", "ceph:1"))
		})
	}
	wg.Wait()
	good, starved := 0, 0
	for _, e := range exits {
		switch {
		case e == "OK":
			good++
		case e == "cfs-lock 'storage-ceph' error: got lock request timeout":
			starved++
		default:
			t.Errorf("allocation ended with %q", e)
		}
	}
	if good == 0 || starved == 0 {
		t.Errorf("%d allocations succeeded and %d timed out; want both with contention on a cluster-wide lock", good, starved)
	}
}

func TestDestroyLock(t *testing.T) { simulated(t, testDestroyLock) }

func testDestroyLock(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "description", "mine")
	upid := c.ok("DELETE", "/nodes/pve1/qemu/300")
	seen := false
	eventually(t, "the VM to be deleted", func() bool {
		a := c.do("GET", "/nodes/pve1/qemu/300/config")
		if conf, _ := a.Data.(map[string]any); conf != nil && conf["lock"] == "destroyed" {
			seen = true
			if conf["description"] != nil || conf["smbios1"] != nil {
				t.Errorf("VM being destroyed still has its identity: %v", conf)
			}
		}
		return a.Status != 200
	})
	if !seen {
		t.Error("lock: destroyed was never visible")
	}
	c.exit(upid)
}

func TestCloneHostDown(t *testing.T) { simulated(t, testCloneHostDown) }

func testCloneHostDown(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	upid := c.ok("POST", "/nodes/pve2/qemu/9001/clone", "newid", "300", "full", "1")
	eventually(t, "the clone to start", func() bool { return c.do("GET", "/nodes/pve2/qemu/300/config").Status == 200 })
	if err := c.sim.HostDown("pve2", "refused"); err != nil {
		t.Fatal(err)
	}
	a := c.refused(595, "Connection refused", "GET", "/nodes/pve2/qemu/300/config")
	if a.Raw != "" {
		t.Errorf("595 has a body: %q", a.Raw)
	}
	if err := c.sim.HostUp("pve2"); err != nil {
		t.Fatal(err)
	}
	if lock := c.config("pve2", 300)["lock"]; lock != "clone" {
		t.Errorf("lock: %v", lock)
	}
	if exit := c.exit(upid); exit != "unexpected status" {
		t.Errorf("task of the offline host ended with %q", exit)
	}
	if exit := c.exit(c.ok("DELETE", "/nodes/pve2/qemu/300")); exit != "VM is locked (clone)" {
		t.Errorf("destroy ended with %q", exit)
	}
}

func TestCloneStopped(t *testing.T) { simulated(t, testCloneStopped) }

func testCloneStopped(t *testing.T) {
	s := pvesim.DefaultScenario(1)
	s.Guests[0].Config["scsi0"] = "local-lvm:base-9000-disk-0,size=200G"
	c := startSim(t, s, pvesim.Options{})
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "1").(string)
	eventually(t, "a volume to be created", func() bool {
		return c.do("GET", "/nodes/pve1/qemu/300/config").Status == 200 &&
			strings.Contains(fmt.Sprint(c.ok("GET", "/nodes/pve1/storage/local-lvm/content", "vmid", "300")), "vm-300-disk-0")
	})
	c.ok("DELETE", "/nodes/pve1/tasks/"+upid)
	if exit := c.exit(upid); exit == "OK" {
		t.Error("stopped task succeeded")
	}
	if a := c.do("GET", "/nodes/pve1/qemu/300/config"); a.Status == 200 {
		t.Errorf("config still exists: %v", a.Data)
	}
	if left := c.ok("GET", "/nodes/pve1/storage/local-lvm/content", "vmid", "300").([]any); len(left) > 0 {
		t.Errorf("leaked volumes: %v", left)
	}
}

func TestWorkersBusy(t *testing.T) { simulated(t, testWorkersBusy) }

func testWorkersBusy(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	release, err := c.sim.HoldVMLock(context.Background(), "pve1", 101)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	var wg sync.WaitGroup
	var busy atomic.Int32
	busy.Store(3)
	for range 3 {
		wg.Go(func() {
			c.do("PUT", "/nodes/pve1/qemu/101/config", "cores", "1")
			busy.Add(-1)
		})
	}
	longest := time.Duration(0)
	for busy.Load() == 3 {
		start := time.Now()
		c.ok("GET", "/nodes/pve1/qemu/101/status/current")
		longest = max(longest, time.Since(start))
	}
	// The three calls block for ten simulated seconds; calls in between had to wait for most of that.
	if longest < 5*time.Second {
		t.Errorf("no protected call took longer than %v; want calls to wait for a worker", longest)
	}
	wg.Wait()
}

// With target and pool, the pool is set last: if that fails, the config remains on the target host, unlocked, but its
// volumes are deleted.
func TestClonePoolDeleted(t *testing.T) { simulated(t, testClonePoolDeleted) }

func testClonePoolDeleted(t *testing.T) {
	s := pvesim.DefaultScenario(2)
	s.Storages = append(s.Storages, pvesim.Storage{ID: "nfs", Type: "nfs", Content: []string{"images"}, Size: pvesim.TiB})
	s.Pools = []pvesim.Pool{{ID: "kube"}}
	s.Users[1].Tokens = []pvesim.Token{{ID: "admin", Secret: "s"}}
	s.Guests[0].Config["scsi0"] = "nfs:9000/base-9000-disk-0.qcow2,size=40G"
	s.Guests[0].Config["ide2"] = "nfs:9000/vm-9000-cloudinit.qcow2,media=cdrom"
	c := startSim(t, s, pvesim.Options{})
	root := c.as("root@pam!admin=s")
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "1", "target", "pve2", "pool", "kube")
	eventually(t, "the copy to start", func() bool { return c.do("GET", "/nodes/pve1/qemu/300/config").Status == 200 })
	root.ok("DELETE", "/pools/kube")
	if exit := c.exit(upid); !strings.HasPrefix(exit, "clone failed: can't add VM 300 to pool 'kube'") {
		t.Fatalf("clone ended with %q", exit)
	}
	conf := c.config("pve2", 300)
	if conf["lock"] != nil || conf["scsi0"] == nil {
		t.Errorf("config on the target: %v", conf)
	}
	if exit := c.exit(c.ok("POST", "/nodes/pve2/qemu/300/status/start")); !strings.Contains(exit, "does not exist") {
		t.Errorf("start of a VM without volumes ended with %s", exit)
	}
}
