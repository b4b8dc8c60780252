// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withSharedTemplate adds template 9500 "shared" on pve1, with its disk on a storage that both
// hosts share.
func withSharedTemplate(s *pvesim.Scenario) {
	s.Storages = append(s.Storages, pvesim.Storage{ID: "ceph", Type: "rbd", Content: []string{"images"}, Size: pvesim.TiB, Hosts: []string{"pve1", "pve2"}})
	for _, guest := range s.Guests {
		if guest.VMID == 9000 {
			guest.VMID, guest.Name, guest.Config = 9500, "shared", maps.Clone(guest.Config)
			guest.Config["scsi0"], guest.Config["ide2"] = "ceph:base-9500-disk-0,size=3G", "none,media=cdrom"
			s.Guests = append(s.Guests, guest)
			return
		}
	}
}

// useManaged makes the class use template 9500, as that of a ProxmoxTemplate.
func (w *planEnv) useManaged() {
	w.T.Helper()
	template := &v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "managed"}, Spec: v1alpha1.ProxmoxTemplateSpec{
		// On local, the first storage with images, there would be a template for each host.
		SourceImage: v1alpha1.SourceImage{URL: "https://example.com/debian.qcow2"}, StorageIDs: []string{"ceph", "local"},
		Network: []v1alpha1.NetworkInterface{{Bridge: "vmbr0"}},
	}}
	w.Create(template)
	template.Status.Zones = []string{testenv.Region + "/pve1/9500", testenv.Region + "/pve2/9500"}
	w.Expect(w.Kube.Status().Update(w.T.Context(), template)).To(Succeed())
	mark := ownership.Mark{
		VMID: 9500, KubeCluster: w.KubeCluster, Name: template.Name, TemplateUID: string(template.UID),
		Generation: template.Hash(), Hash: template.Hash(), HashVersion: v1alpha1.HashVersion,
	}
	w.Expect(w.Client.UpdateVM(w.T.Context(), "pve1", 9500, proxmox.ConfigChange{Set: map[string]string{"description": mark.Notes("")}})).To(Succeed())
	w.useTemplate(v1alpha1.ProxmoxTemplateKind, template.Name, template.Status.Zones)
}

// VMs are cloned only from templates on hosts that are online. The controller builds its own
// templates on shared storages again.
func TestPlanLostTemplateHost(t *testing.T) {
	t.Parallel()
	unmanaged := func(spec v1alpha1.ProxmoxUnmanagedTemplateSpec) func(*planEnv) {
		return func(w *planEnv) { w.useUnmanaged("other", spec) }
	}
	for name, test := range map[string]struct {
		use func(*planEnv)
		// reason is why no VM is created.
		reason string
	}{
		"unmanaged_on_local_storage": {unmanaged(v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 9000}), "pve1: offline"},
		"unmanaged_on_shared_storage": {unmanaged(v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "shared"}),
			"pve2: template 9500 is on host pve1, which is offline"},
		"managed_on_shared_storage": {use: (*planEnv).useManaged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := savePlan(t, planSetup{scenario: withSharedTemplate, objects: test.use})
			s.Expect(s.plan("-f web.yaml").Create).To(HaveLen(3), "before the host is lost")
			plan := s.plan("-f web.yaml --lose-host home/pve1")
			if test.reason == "" {
				s.Expect(plan.Create).To(And(HaveLen(3), HaveEach(HaveField("Host", "pve2"))))
				s.Expect(plan.Notes).To(HaveExactElements("ProxmoxTemplate managed on storage ceph is built again on host home/pve2, " +
					"because host home/pve1 is offline; VMs that are cloned from it are created after that"))
				return
			}
			s.Expect(plan.Create).To(BeEmpty())
			s.Expect(plan.Unschedulable).To(And(HaveLen(3), HaveEach(HaveField("Reason", ContainSubstring(test.reason)))))
			s.Expect(plan.Notes).To(BeEmpty())
		})
	}
}

// Host settings with the numbers of the CPUs make hosts usable for classes with exclusive cores.
func TestPlanNewHostSettings(t *testing.T) {
	t.Parallel()
	s := savePlan(t, planSetup{
		scenario: func(s *pvesim.Scenario) {
			for n := range s.Hosts {
				s.Hosts[n].Sockets, s.Hosts[n].Cores, s.Hosts[n].NUMA = 2, 4, 2
			}
			for n := range s.Guests {
				if s.Guests[n].Config["template"] != "" {
					s.Guests[n].Config["hookscript"] = "local:snippets/pve-hook"
				}
			}
		},
		objects: func(w *planEnv) {
			testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.CPU = &v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}
			})
			w.class.Status.SelectedZones = nil
			w.MarkReady(w.class)
			w.class.StatusConditions().SetFalse(v1alpha1.ConditionCPULayoutReady, v1alpha1.ReasonCPULayoutUnsupported, "cores cannot be assigned")
			setConditions(w.Env, w.class)
		},
	})
	s.Expect(s.plan("-f web.yaml").Create).To(BeEmpty())
	write(t, s.dir, "cells.json", `{"*": {"pve2": {"nodes": {"0": {"cpus": "0-3"}, "1": {"cpus": "4-7"}}}}}`)
	s.Expect(s.plan("-f web.yaml --new-node-setting-file cells.json").Create).To(And(Not(BeEmpty()), HaveEach(HaveField("Host", "pve2"))))
}
