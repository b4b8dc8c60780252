// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	templateID = 9000
	nodeID     = 20001
)

// simulate starts a simulated Cluster of that release with two Hosts and returns its client.
func simulate(t testing.TB, release string, changes ...func(*pvesim.Scenario)) (*pvesim.Simulator, proxmox.Client) {
	t.Helper()
	scenario := pvesim.DefaultScenario(2)
	scenario.Version = release
	for _, change := range changes {
		change(scenario)
	}
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: 50})
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	return sim, newClient(t, simConfig(sim), proxmox.Options{})
}

func simConfig(sim *pvesim.Simulator) proxmox.ClusterConfig {
	return proxmox.ClusterConfig{
		Region: "sim", URLs: []string{sim.URL()}, CA: string(sim.CAPEM()),
		TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	}
}

// waitFor waits for a task and returns its error.
func waitFor(ctx context.Context, c proxmox.Client, task proxmox.UPID, err error) error {
	if err != nil {
		return err
	}
	status, err := proxmox.WaitTask(ctx, c, task, proxmox.WaitOptions{})
	if err != nil {
		return err
	}
	return status.Err()
}

func clone(ctx context.Context, c proxmox.Client, vmid int) error {
	task, err := c.CloneVM(ctx, proxmox.CloneRequest{Host: "pve1", TemplateID: templateID, VMID: vmid, Name: "node", Description: "ours"})
	return waitFor(ctx, c, task, err)
}

func TestSimulatorVMLifecycle(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			ctx := testContext(t)
			sim, c := simulate(t, release)
			g.Expect(proxmox.Check(ctx, c)).To(Succeed())
			version, err := c.Version(ctx)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(version.Release).To(Equal(release))

			g.Expect(clone(ctx, c, nodeID)).To(Succeed())
			task, err := c.UploadISO(ctx, "pve1", "local", "boot.iso", []byte("a boot drive"))
			g.Expect(waitFor(ctx, c, task, err)).To(Succeed())
			configure(ctx, g, c)
			task, err = c.ResizeDisk(ctx, "pve1", nodeID, "scsi0", 10<<30)
			g.Expect(waitFor(ctx, c, task, err)).To(Succeed())
			g.Expect(c.SetFirewall(ctx, "pve1", nodeID, []proxmox.SecurityGroupRule{{Group: "kubernetes", Interface: "net0"}})).To(Succeed())
			task, err = c.StartVM(ctx, "pve1", nodeID)
			g.Expect(waitFor(ctx, c, task, err)).To(Succeed())

			status, err := c.VMStatus(ctx, "pve1", nodeID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(status.Running && status.AgentEnabled).To(BeTrue())
			config, err := c.VMConfig(ctx, "pve1", nodeID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect([]any{config.Name(), config.Description(), config.Compute().Cores(), config.Compute().MemoryMiB(), config.Tags()}).
				To(Equal([]any{"node", "ours", 4, 8192, []string{"karpenter"}}))
			g.Expect(config.SMBIOS().SKU).To(Equal("c1.4VCPU-8GB"))
			disk, _ := config.Drives().Boot()
			g.Expect([]any{disk.Slot, disk.SizeBytes}).To(Equal([]any{"scsi0", int64(10 << 30)}))

			_, err = c.DestroyVM(ctx, "pve1", nodeID)
			g.Expect(err).To(MatchError(proxmox.ErrRunning))
			deleteVM(ctx, g, c)
			g.Expect(sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone")).To(Equal(1))
		})
	}
}

// configure writes the options of a node in one call.
func configure(ctx context.Context, g *WithT, c proxmox.Client) {
	config, err := c.VMConfig(ctx, "pve1", nodeID)
	g.Expect(err).NotTo(HaveOccurred())
	smbios := config.SMBIOS()
	smbios.SKU = "c1.4VCPU-8GB"
	nic := config.Network().NICs()[0]
	nic.Queues, nic.Firewall = 4, true
	change := proxmox.ConfigChange{
		Set: map[string]string{
			"cores": "4", "memory": "8192", "tags": "Karpenter", "smbios1": smbios.Encode(), "net0": nic.Encode(),
			"ide2": "local:iso/boot.iso,media=cdrom", "boot": "order=scsi0;ide2",
		},
		Digest: config.Digest,
	}
	g.Expect(c.UpdateVM(ctx, "pve1", nodeID, change)).To(Succeed())
	g.Expect(c.UpdateVM(ctx, "pve1", nodeID, change)).To(MatchError(proxmox.ErrConflict), "the digest is that of the previous config")
	after, err := c.VMConfig(ctx, "pve1", nodeID)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after.Network().NICs()[0].MAC).To(Equal(nic.MAC), "a NIC that is written with its MAC keeps it")
}

// deleteVM stops and destroys the VM, deletes its boot drive, and checks that no volume
// is left.
func deleteVM(ctx context.Context, g *WithT, c proxmox.Client) {
	task, err := c.StopVM(ctx, "pve1", nodeID)
	g.Expect(waitFor(ctx, c, task, err)).To(Succeed())
	task, err = c.DestroyVM(ctx, "pve1", nodeID)
	g.Expect(waitFor(ctx, c, task, err)).To(Succeed())
	for range 2 {
		task, err = c.DeleteVolume(ctx, "pve1", "local:iso/boot.iso")
		g.Expect(waitFor(ctx, c, task, err)).To(Succeed(), "also if it does not exist")
	}
	_, err = c.VMConfig(ctx, "pve1", nodeID)
	g.Expect(err).To(MatchError(proxmox.ErrNotFound))
	isos, err := c.Volumes(ctx, "pve1", "local", "iso")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(isos).To(BeEmpty())
	disks, err := c.Volumes(ctx, "pve1", "local-lvm", "images")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(slices.ContainsFunc(disks, func(v proxmox.Volume) bool { return v.VMID == nodeID })).To(BeFalse())
}

func TestSimulatorCluster(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := testContext(t)
	_, c := simulate(t, "9.2")
	var all proxmox.Resources
	g.Eventually(func() bool { // rows are complete after the first cycle of pvestatd
		var err error
		all, err = c.Resources(ctx)
		return err == nil && len(all.Hosts) == 2 && all.Hosts[0].CPUs > 0 && len(all.Guests) == 4 &&
			!slices.ContainsFunc(all.Guests, func(r proxmox.GuestRow) bool { return !r.HasResources() })
	}).WithTimeout(time.Minute).Should(BeTrue())
	g.Expect(all.Hosts[0].MemoryBytes).To(BeEquivalentTo(64 << 30))
	g.Expect(slices.ContainsFunc(all.Guests, func(r proxmox.GuestRow) bool { return r.Template && r.VMID == templateID && r.Name == "ubuntu" })).To(BeTrue())
	g.Expect(slices.ContainsFunc(all.Storages, func(r proxmox.StorageRow) bool {
		return r.Name == "local-lvm" && r.Host == "pve2" && r.Type == "lvmthin" && r.Available && !r.Shared && r.TotalBytes > 0
	})).To(BeTrue())

	bridges, err := c.Bridges(ctx, "pve1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(bridges).To(ContainElement(proxmox.Bridge{Name: "vmbr0", Type: "bridge", VLANAware: true, Ports: "eno1"}))
	for pool, want := range map[string]bool{"nothing": false, "nested/nothing": false} {
		g.Expect(c.PoolExists(ctx, pool)).To(Equal(want))
	}
	groups, err := c.SecurityGroups(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(groups).To(Equal([]string{"kubernetes"}))
	permissions, err := c.Permissions(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(permissions["/vms"]).To(HaveKeyWithValue("VM.Clone", true))
	options, err := c.Options(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(options.MACPrefix).To(Equal("BC:24:11"))
	g.Expect(options.AllowedTags).To(BeNil())
}

func TestSimulatorErrors(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := testContext(t)
	sim, c := simulate(t, "8.4")

	_, err := c.VMConfig(ctx, "pve2", templateID)
	g.Expect(err).To(MatchError(proxmox.ErrNotFound), "the host of the path counts")
	g.Expect(clone(ctx, c, 101)).To(MatchError(proxmox.ErrExists))
	_, err = c.CloneVM(ctx, proxmox.CloneRequest{Host: "pve1", TemplateID: 12345, VMID: nodeID})
	g.Expect(err).To(MatchError(proxmox.ErrNotFound))
	g.Expect(clone(ctx, c, nodeID)).To(Succeed())

	set := func(option, value string) error {
		return c.UpdateVM(ctx, "pve1", nodeID, proxmox.ConfigChange{Set: map[string]string{option: value}})
	}
	g.Expect(set("affinity", "0-1")).To(MatchError(proxmox.ErrRootOnly))
	g.Expect(set("startup", "order=1")).To(MatchError(ContainSubstring("privilege Sys.Modify is missing on /")))
	g.Expect(set("cores", "many")).NotTo(Succeed())
	g.Expect(set("protection", "1")).To(Succeed())
	_, err = c.DestroyVM(ctx, "pve1", nodeID)
	g.Expect(err).To(MatchError(proxmox.ErrProtected))
	g.Expect(set("protection", "0")).To(Succeed())
	_, err = c.Task(ctx, "UPID:pve1:00005B27:00024AC4:6AF8FC0A:imgdel:nosuch:kubernetes@pve!karpenter:")
	g.Expect(err).To(MatchError(proxmox.ErrNotFound))
	_, err = c.Volumes(ctx, "pve1", "nostore", "iso")
	g.Expect(err).To(MatchError(proxmox.ErrNotFound))

	g.Expect(sim.SetConfigLock(nodeID, "backup")).To(Succeed())
	g.Expect(set("cores", "2")).To(MatchError(proxmox.ErrLocked))
	task, err := c.StartVM(ctx, "pve1", nodeID)
	g.Expect(waitFor(ctx, c, task, err)).To(MatchError(proxmox.ErrLocked), "as the task's exit status")
	g.Expect(sim.SetConfigLock(nodeID, "")).To(Succeed())

	release, err := sim.HoldVMLock(ctx, "pve1", nodeID)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(set("cores", "2")).To(MatchError(proxmox.ErrLocked), "the file lock, after a wait")
	release()
	g.Expect(sim.SetStorageFull("local-lvm", true)).To(Succeed())
	g.Expect(clone(ctx, c, nodeID+1)).To(MatchError(proxmox.ErrStorageFull))
	g.Expect(sim.SetStorageFull("local-lvm", false)).To(Succeed())

	sim.SetQuorum(false)
	g.Expect(clone(ctx, c, nodeID+1)).To(MatchError(proxmox.ErrNoQuorum))
	sim.SetQuorum(true)
	g.Expect(sim.HostDown("pve2", "refused")).To(Succeed())
	_, err = c.VMConfig(ctx, "pve2", templateID+1)
	g.Expect(err).To(MatchError(proxmox.ErrHostUnreachable))
}

// A write whose connection was lost has taken effect.
func TestSimulatorLostResponse(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := testContext(t)
	sim, c := simulate(t, "9.2")
	_, err := sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", DropAfter: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(clone(ctx, c, nodeID)).To(MatchError(proxmox.ErrUnknownOutcome))
	g.Expect(sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone")).To(Equal(1))
	g.Eventually(func() string {
		config, _ := c.VMConfig(ctx, "pve1", nodeID)
		return config.Description()
	}).WithTimeout(time.Minute).Should(Equal("ours"))

	_, err = sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/status/start", Status: 500, Message: "got no worker upid - start worker failed"})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = c.StartVM(ctx, "pve1", nodeID)
	g.Expect(err).To(MatchError(proxmox.ErrBusy))
}

func TestSimulatorTasks(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := testContext(t)
	sim, c := simulate(t, "8.4")
	_, err := sim.AddFault(pvesim.Fault{Task: "qmclone", Hang: true, Count: 1})
	g.Expect(err).NotTo(HaveOccurred())
	task, err := c.CloneVM(ctx, proxmox.CloneRequest{Host: "pve1", TemplateID: templateID, VMID: nodeID})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{task.Host(), task.Kind(), task.ID(), task.User()}).To(Equal([]string{"pve1", "qmclone", "9000", pvesim.DefaultTokenID}))

	running, err := c.RunningTasks(ctx, "pve1", "qmclone")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(running).To(HaveLen(1))
	g.Expect(running[0].UPID).To(Equal(task))
	g.Expect(c.RecentTasks(ctx, "pve1", task.User(), task.Started())).To(ConsistOf(running))
	g.Expect(c.RecentTasks(ctx, "pve1", task.User(), task.Started().Add(time.Second))).To(BeEmpty())
	g.Expect(c.RecentTasks(ctx, "pve1", "root@pam", task.Started())).To(BeEmpty())
	others, err := c.RunningTasks(ctx, "pve1", "qmstart")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(others).To(BeEmpty())

	g.Expect(c.CancelTask(ctx, task)).To(Succeed())
	g.Expect(waitFor(ctx, c, task, nil)).NotTo(Succeed())
	log, err := c.TaskLog(ctx, task)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Join(log, "\n")).To(ContainSubstring("TASK ERROR"))
	g.Expect(c.RecentTasks(ctx, "pve1", task.User(), task.Started())).To(ConsistOf(HaveField("Exit", Not(BeEmpty()))))
	running, err = c.RunningTasks(ctx, "pve1", "qmclone")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(running).To(BeEmpty())
}

func TestSimulatorRootLogin(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := testContext(t)
	sim, _ := simulate(t, "8.4")
	cfg := simConfig(sim)
	cfg.TokenID, cfg.TokenSecret, cfg.Username, cfg.Password = "", "", "root@pam", pvesim.RootPassword
	c := newClient(t, cfg, proxmox.Options{})
	g.Expect(clone(ctx, c, nodeID)).To(Succeed())
	g.Expect(c.UpdateVM(ctx, "pve1", nodeID, proxmox.ConfigChange{Set: map[string]string{"affinity": "0-1"}})).To(Succeed())
	g.Expect(sim.CountRequests("POST", "/access/ticket")).To(Equal(1))
}

func TestSimulatorMaintenanceAndMappings(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		g := NewWithT(t)
		sim, c := simulate(t, release, func(s *pvesim.Scenario) {
			s.Hosts[1].Arch = "aarch64"
			s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use")
			s.Mappings = []pvesim.Mapping{{Kind: "pci", ID: "gpu", Map: []string{"node=pve1,path=0000:01:00.0,id=10de:2204", "node=pve2,path=0000:02:00,id=10de:2204"}},
				{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank/data", "node=pve2,path=/srv"}}}
		})
		g.Expect(sim.SetMaintenance("pve2", true)).To(Succeed())
		g.Expect(c.Maintenance(testContext(t))).To(Equal([]string{"pve2"}))
		found, err := c.Resources(testContext(t))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.Hosts[1].Maintenance).To(Equal(release == "9.2"))
		g.Expect(found.Hosts[1].Arch == "aarch64").To(Equal(release == "9.2"))
		g.Expect(c.PCIMappings(testContext(t))).To(Equal([]proxmox.PCIMapping{{ID: "gpu", Devices: []proxmox.PCIDevice{
			{Host: "pve1", Path: "0000:01:00.0"}, {Host: "pve2", Path: "0000:02:00"},
		}}}))
		g.Expect(c.DirectoryMappings(testContext(t))).To(Equal([]proxmox.DirectoryMapping{{ID: "data", Paths: map[string]string{"pve1": "/tank/data", "pve2": "/srv"}}}))
	}
}
