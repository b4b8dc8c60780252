// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"
	"time"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// usableZones returns the number that the column ZONES shows.
func usableZones(class *v1alpha1.ProxmoxNodeClass) int64 {
	zones := class.Status.Resources[v1alpha1.ResourceZones]
	return zones.Value()
}

// setOnline makes a Host go offline or return, and waits until the Snapshot shows it.
func setOnline(w *testenv.Env, host string, online bool) {
	w.T.Helper()
	if online {
		w.Expect(w.Sim.HostUp(host)).To(Succeed())
	} else {
		w.Expect(w.Sim.HostDown(host, "noroute")).To(Succeed())
	}
	w.Eventually(func() bool {
		w.Refresh()
		state, _ := w.Inventory.View().Host(testenv.Region, host)
		return state.OfflineSince.IsZero()
	}).Should(Equal(online))
}

func TestReconcileHostOffline(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(3))
	selected := testenv.Zones(3)
	setTemplateZones(w, selected...)
	class := reconcileClass(w, w.NewClass())
	w.Expect(class.Status.UnusableZones).To(BeEmpty())
	w.Expect(usableZones(class)).To(Equal(int64(3)))

	setOnline(w, "pve2", false)
	reconcileClass(w, class)
	w.Expect(class.Status.UnusableZones).To(HaveLen(1))
	offline := class.Status.UnusableZones[0]
	w.Expect(offline.Zone).To(Equal("region-1/pve2"))
	w.Expect(offline.Reason).To(Equal("the host is offline"))
	state, _ := w.Inventory.View().Host(testenv.Region, "pve2")
	w.Expect(offline.Since.Time).To(BeTemporally("==", state.OfflineSince.Truncate(time.Second)))
	w.Expect(class.Status.SelectedZones).To(Equal(selected), "its template is still there")
	w.Expect(usableZones(class)).To(Equal(int64(2)))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())

	written := class.ResourceVersion
	w.Restart(true)
	w.Expect(reconcileClass(w, class).ResourceVersion).To(Equal(written), "a restart changes nothing")

	setOnline(w, "pve2", true)
	reconcileClass(w, class)
	w.Expect(class.Status.UnusableZones).To(BeEmpty())
	w.Expect(usableZones(class)).To(Equal(int64(3)))
}

func TestReconcileHostOutOfService(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	setTemplateZones(w, testenv.Zones(2)...)
	class := w.NewClass()
	w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: "new disk"})
	w.Expect(reconcileClass(w, class).Status.UnusableZones).To(ConsistOf(v1alpha1.UnusableZone{
		Zone: "region-1/pve1", Reason: "the host is in maintenance (requested in Kubernetes: new disk)",
	}))
	w.Inventory.SetMaintenance(nil)
	settings, err := inventory.ParseSettings([]byte(`{"*": {"pve2": {"excluded": true}}}`))
	w.Expect(err).NotTo(HaveOccurred())
	w.Inventory.SetSettings(settings)
	w.Expect(reconcileClass(w, class).Status.UnusableZones).To(ConsistOf(v1alpha1.UnusableZone{Zone: "region-1/pve2", Reason: "the host is excluded by settings"}))
	w.Expect(usableZones(class)).To(Equal(int64(1)))
}

// An excluded host gets no template.
func TestReconcileExcludedHostWithoutTemplate(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	setTemplateZones(w, testenv.Zones(1)...)
	class := w.NewClass()
	settings, err := inventory.ParseSettings([]byte(`{"*": {"pve2": {"excluded": true}}}`))
	w.Expect(err).NotTo(HaveOccurred())
	w.Inventory.SetSettings(settings)
	w.Expect(reconcileClass(w, class).Status.UnusableZones).To(ConsistOf(And(
		HaveField("Zone", "region-1/pve2"), HaveField("Reason", HaveSuffix(" is not on this host: the host is excluded by settings")))))
	w.Expect(usableZones(class)).To(Equal(int64(1)))
}
