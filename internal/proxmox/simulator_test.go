// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"testing"

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
	sim := startSim(t, pvesim.Options{InMemory: true}, release, changes...)
	return sim, newClient(t, simConfig(sim), proxmox.Options{DialContext: sim.DialContext})
}

func startSim(t testing.TB, options pvesim.Options, release string, changes ...func(*pvesim.Scenario)) *pvesim.Simulator {
	t.Helper()
	g := NewWithT(t)
	scenario := pvesim.DefaultScenario(2)
	scenario.Version = release
	for _, change := range changes {
		change(scenario)
	}
	sim, err := pvesim.New(scenario, options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sim.Start(t.Context())).To(Succeed())
	t.Cleanup(sim.Close)
	return sim
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

func TestMaintenance(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		runSimulated(t, release, func(t *testing.T, g *WithT) {
			sim, c := simulate(t, release, func(s *pvesim.Scenario) { s.Hosts[1].Arch = "aarch64" })
			g.Expect(sim.SetMaintenance("pve2", true)).To(Succeed())
			g.Expect(c.Maintenance(t.Context())).To(Equal([]string{"pve2"}))
			found, err := c.Resources(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.Hosts[1].Maintenance).To(Equal(release == "9.2"))
			g.Expect(found.Hosts[1].Arch == "aarch64").To(Equal(release == "9.2"))
		})
	}
}
