// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	unmanagedstatus "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/whatif"
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

// useTemplate makes the class use another template object.
func (w *planEnv) useTemplate(kind, name string, zones []string) {
	w.T.Helper()
	testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: kind, Name: name}
	})
	w.class.Status.SelectedZones = zones
	w.MarkReady(w.class)
}

// useUnmanaged makes the class use the templates with a name or a VMID.
func (w *planEnv) useUnmanaged(spec v1alpha1.ProxmoxUnmanagedTemplateSpec) {
	w.T.Helper()
	template := w.Template(func(u *v1alpha1.ProxmoxUnmanagedTemplate) { u.Name, u.Spec = w.Named("other"), spec })
	unmanagedstatus.Resolve(w.Inventory, template)
	w.Expect(w.Kube.Status().Update(w.T.Context(), template)).To(Succeed())
	w.useTemplate(v1alpha1.ProxmoxUnmanagedTemplateKind, template.Name, template.Status.Zones)
}

// useManaged makes the class use template 9500, as that of a ProxmoxTemplate.
func (w *planEnv) useManaged() {
	w.T.Helper()
	template := &v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: w.Named("managed")}, Spec: v1alpha1.ProxmoxTemplateSpec{
		// On local, the first storage with images, there would be a template for each host.
		SourceImage: v1alpha1.SourceImage{URL: "https://example.com/debian.qcow2"}, StorageIDs: []string{"ceph", "local"},
		Network: []v1alpha1.NetworkInterface{{Bridge: "vmbr0"}},
	}}
	w.Create(template)
	template.Status.Zones = []string{testenv.Region + "/pve1/9500", testenv.Region + "/pve2/9500"}
	w.Expect(w.Kube.Status().Update(w.T.Context(), template)).To(Succeed())
	id, err := clusterID(w.T.Context(), w.Kube)
	w.Expect(err).NotTo(HaveOccurred())
	mark := ownership.Mark{
		VMID: 9500, KubeCluster: id, Name: template.Name, TemplateUID: string(template.UID),
		Generation: template.Hash(), Hash: template.Hash(), HashVersion: v1alpha1.HashVersion,
	}
	w.Expect(w.Client.UpdateVM(w.T.Context(), "pve1", 9500, proxmox.ConfigChange{Set: map[string]string{"description": mark.Notes("")}})).To(Succeed())
	w.useTemplate(v1alpha1.ProxmoxTemplateKind, template.Name, template.Status.Zones)
}

// VMs are cloned only from templates on hosts that are online. The controller builds its own
// templates on shared storages again.
func TestPlanLostTemplateHost(t *testing.T) {
	t.Parallel()
	noVM := func(reason string) func(*planEnv, whatif.Plan) {
		return func(w *planEnv, plan whatif.Plan) {
			w.Expect(plan.Create).To(BeEmpty())
			w.Expect(plan.Unschedulable).To(HaveLen(3))
			w.Expect(plan.Unschedulable).To(HaveEach(HaveField("Reason", ContainSubstring(reason))))
			w.Expect(plan.Notes).To(BeEmpty())
		}
	}
	for name, test := range map[string]struct {
		use  func(*planEnv)
		want func(*planEnv, whatif.Plan)
	}{
		"unmanaged_on_local_storage": {
			func(w *planEnv) { w.useUnmanaged(v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 9000}) },
			noVM("pve1: offline"),
		},
		"unmanaged_on_shared_storage": {
			func(w *planEnv) { w.useUnmanaged(v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "shared"}) },
			noVM("pve2: template 9500 is on host pve1, which is offline"),
		},
		"managed_on_shared_storage": {(*planEnv).useManaged, func(w *planEnv, plan whatif.Plan) {
			w.Expect(plan.Create).To(HaveLen(3))
			w.Expect(plan.Create).To(HaveEach(HaveField("Host", "pve2")))
			w.Expect(plan.Notes).To(HaveExactElements("ProxmoxTemplate default-managed on storage ceph is built again on host home/pve2, " +
				"because host home/pve1 is offline; VMs that are cloned from it are created after that"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newPlanEnvIn(t, withSharedTemplate)
			w.writeManifests()
			test.use(w)
			w.Expect(w.decode(w.plan("-f web.yaml -o json"), nil).Create).To(HaveLen(3), "before the host is lost")
			test.want(w, w.decode(w.plan("-f web.yaml --lose-host home/pve1 -o json"), nil))
		})
	}
}

// Host settings with the numbers of the CPUs make hosts usable for classes with exclusive cores.
func TestPlanNewHostSettings(t *testing.T) {
	t.Parallel()
	w := newPlanEnvIn(t, func(s *pvesim.Scenario) {
		for n := range s.Hosts {
			s.Hosts[n].Sockets, s.Hosts[n].Cores, s.Hosts[n].NUMA = 2, 4, 2
		}
		for n := range s.Guests {
			if s.Guests[n].Config["template"] != "" {
				s.Guests[n].Config["hookscript"] = "local:snippets/pve-hook"
			}
		}
	})
	w.writeManifests()
	testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.CPU = &v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}
	})
	w.class.Status.SelectedZones = nil
	w.MarkReady(w.class)
	w.class.StatusConditions().SetFalse(v1alpha1.ConditionCPULayoutReady, v1alpha1.ReasonCPULayoutUnsupported, "cores cannot be assigned")
	w.Expect(w.Kube.Status().Update(t.Context(), w.class)).To(Succeed())
	w.Expect(w.decode(w.plan("-f web.yaml -o json"), nil).Create).To(BeEmpty())
	write(t, w.dir, "cells.json", `{"*": {"pve2": {"nodes": {"0": {"cpus": "0-3"}, "1": {"cpus": "4-7"}}}}}`)
	plan := w.decode(w.plan("-f web.yaml --new-node-setting-file cells.json -o json"), nil)
	w.Expect(plan.Create).NotTo(BeEmpty())
	w.Expect(plan.Create).To(HaveEach(HaveField("Host", "pve2")))
}

// A ProxmoxUnmanagedTemplate that selects another template replaces the Nodes of the classes that use it.
func TestPlanChangedTemplate(t *testing.T) {
	t.Parallel()
	w := newPlanEnvIn(t, withSharedTemplate)
	w.writeManifests()
	w.useUnmanaged(v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 9000})
	w.addNode("a", "pve1", "500m")
	// The plan has other names than the hash.
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: w.Named("a")}}
	testenv.Modify(w.Env, claim, func(c *karpv1.NodeClaim) { delete(c.Annotations, v1alpha1.AnnotationNodeClassHash) })
	write(t, w.dir, "template.yaml", `{apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1, kind: ProxmoxUnmanagedTemplate, metadata: {name: default-other}, spec: {vmid: 9500}}`)
	plan := w.decode(w.plan("-f template.yaml -o json"), nil)
	w.Expect(plan.Delete).To(ConsistOf(And(HaveField("NodeClaim", "default-a"), HaveField("Reason", string(v1alpha1.DriftImage)))))
	w.Expect(plan.Create).To(ConsistOf(HaveField("Pods", ConsistOf("shop/a"))))
}
