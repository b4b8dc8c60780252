// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// topologyVM adds the VM that the daemon proxmox-scheduler creates on its Host.
func topologyVM(s *pvesim.Scenario) {
	s.Guests = append(s.Guests, pvesim.Guest{VMID: 102, Name: "node-capacity", Host: "pve1", Config: map[string]string{
		"name": "node-capacity", "description": "Karpenter discovery service", "tags": "karpenter", "ostype": "l26", "cpu": "host",
		"cores": "16", "sockets": "1", "memory": "63488", "numa": "1", "affinity": "0-7,8-15",
		"numa0": "cpus=0-7,hostnodes=0,memory=31744", "numa1": "cpus=8-15,hostnodes=1,memory=31744",
	}})
}

// The topology VM of a Host never runs, so its affinity takes no cores.
func TestLaunchPinningNextToTopologyVM(t *testing.T) {
	t.Parallel()
	w := newNUMAEnv(t, "9.2", v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}, topologyVM, func(s *pvesim.Scenario) {
		s.Guests[1].Config["affinity"] = "0-3"
	})
	p := w.StartProcess(numberedCPUs(), testenv.AsRoot())
	claim, cfg := launchSized(w, p, "one", "t1.2VCPU-6GB")
	w.Expect(cfg.Compute().Affinity()).To(Equal(cpuset.New(4, 5)))
	p.Delete(claim)
	w.ExpectNoOrphans()
}
