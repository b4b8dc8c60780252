// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"strings"
	"testing"
	"time"

	proxmox "github.com/luthermonson/go-proxmox"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// go-proxmox, the most common Go client, must work with the simulator.
func TestLifecycleWithGoProxmox(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		runSimulated(t, version, func(t *testing.T, _ *WithT) {
			s := pvesim.DefaultScenario(2)
			s.Version = version
			sim := startSim(t, s, pvesim.Options{})
			c := proxmox.NewClient(sim.url, proxmox.WithHTTPClient(sim.http), proxmox.WithAPIToken(pvesim.DefaultTokenID, pvesim.DefaultTokenSecret))
			runLifecycle(t, c)
		})
	}
}

func runLifecycle(t *testing.T, c *proxmox.Client) {
	t.Helper()
	g := NewWithT(t)
	ctx := context.Background()
	must := func(what string, err error) {
		t.Helper()
		g.Expect(err).NotTo(HaveOccurred(), "%v", what)
	}
	wait := func(what string, task *proxmox.Task, err error) {
		t.Helper()
		must(what, err)
		must(what, task.Wait(ctx, 5*time.Millisecond, 20*time.Second))
		g.Expect(task.IsFailed).To(BeFalse(), "%s: %s", what, task.ExitStatus)
	}
	node, err := c.Node(ctx, "pve1")
	must("reading the host", err)
	template, err := node.VirtualMachine(ctx, 9000)
	must("reading the template", err)
	id, task, err := template.Clone(ctx, &proxmox.VirtualMachineCloneOptions{NewID: 500, Name: "worker", Description: "ours"})
	wait("cloning", task, err)
	vm, err := node.VirtualMachine(ctx, id)
	must("reading the clone", err)
	task, err = vm.Config(ctx, proxmox.VirtualMachineOption{Name: "cores", Value: 4}, proxmox.VirtualMachineOption{Name: "memory", Value: 4096})
	wait("configuring", task, err)
	task, err = vm.ResizeDisk(ctx, "scsi0", "20G")
	wait("resizing", task, err)
	storage, err := node.Storage(ctx, "local")
	must("reading the storage", err)
	task, err = storage.UploadString("iso", "seed.iso", strings.Repeat("x", 4096))
	wait("uploading", task, err)
	task, err = vm.Config(ctx, proxmox.VirtualMachineOption{Name: "ide3", Value: "local:iso/seed.iso,media=cdrom"})
	wait("attaching", task, err)
	task, err = vm.Start(ctx)
	wait("starting", task, err)
	must("reading again", vm.Ping(ctx))
	if cores := vm.VirtualMachineConfig.Cores; !vm.IsRunning() || cores == nil || *cores != 4 {
		t.Errorf("after start: running=%v cores=%v", vm.IsRunning(), cores)
	}
	task, err = vm.Reboot(ctx)
	wait("rebooting", task, err)
	task, err = vm.Stop(ctx)
	wait("stopping", task, err)
	task, err = vm.Delete(ctx, &proxmox.VirtualMachineDeleteOptions{Purge: true})
	wait("destroying", task, err)
	g.Expect(node.VirtualMachine(ctx, id)).Error().To(HaveOccurred(), "destroyed VM still exists")
}

func TestLifecycle(t *testing.T) { simulated(t, testLifecycle) }

func testLifecycle(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "500", "name", "worker", "description", "ours")
	conf := c.config("pve1", 500)
	template := c.config("pve1", 9000)
	for _, same := range []string{"cores", "memory", "scsihw", "agent"} {
		g.Expect(conf[same]).To(Equal(template[same]))
	}
	for _, fresh := range []string{"net0", "smbios1", "scsi0", "ide2"} {
		g.Expect(conf[fresh]).NotTo(BeNil())
		g.Expect(conf[fresh]).NotTo(Equal(template[fresh]))
	}
	g.Expect(conf).To(fields("scsi0", "local-lvm:vm-500-disk-0,size=3G", "memory", "2048", "cores", float64(2)), "unexpected config")
	c.task("POST", "/nodes/pve1/qemu/500/status/start")
	c.refused(500, "VM 500 is running - destroy failed", "DELETE", "/nodes/pve1/qemu/500")
	c.task("POST", "/nodes/pve1/qemu/500/status/shutdown")
	c.task("DELETE", "/nodes/pve1/qemu/500", "purge", "1")
	c.refused(500, "Configuration file 'nodes/pve1/qemu-server/500.conf' does not exist", "GET", "/nodes/pve1/qemu/500/config")
	for _, v := range c.ok("GET", "/nodes/pve1/storage/local-lvm/content").([]any) {
		g.Expect(v.(map[string]any)["volid"].(string)).NotTo(ContainSubstring("-500-"), "leaked volume")
	}
}
