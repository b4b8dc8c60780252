// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 65), host("pve2", 16, 65))
	c.setGuests(vm(100, "pve1", "running", 4, 8))
	c.change(func() { c.resources.Hosts[1].Online = false })
	clock, registry := testclock.NewFakeClock(start), prometheus.NewRegistry()
	i := newInventoryWith(t, inventory.Options{Clock: clock, Registerer: registry}, c)
	refresh(t, i)
	reserve(t, i, "a")
	clock.Step(7 * time.Second)
	c.change(func() { c.failure = proxmox.ErrUnreachable })
	_ = i.Refresh(t.Context(), "r")

	const want = `
# HELP karpenter_proxmox_cluster_quorate 0 while a Proxmox cluster reports that it has no quorum, 1 otherwise.
# TYPE karpenter_proxmox_cluster_quorate gauge
karpenter_proxmox_cluster_quorate{region="r"} 1
# HELP karpenter_proxmox_host_cpus CPUs of a host: allocatable by settings, allocated to guests, reserved for VMs being launched, free.
# TYPE karpenter_proxmox_host_cpus gauge
karpenter_proxmox_host_cpus{host="pve1",region="r",state="allocatable"} 16
karpenter_proxmox_host_cpus{host="pve1",region="r",state="allocated"} 4
karpenter_proxmox_host_cpus{host="pve1",region="r",state="reserved"} 2
karpenter_proxmox_host_cpus{host="pve1",region="r",state="free"} 10
karpenter_proxmox_host_cpus{host="pve2",region="r",state="allocatable"} 16
karpenter_proxmox_host_cpus{host="pve2",region="r",state="allocated"} 0
karpenter_proxmox_host_cpus{host="pve2",region="r",state="reserved"} 0
karpenter_proxmox_host_cpus{host="pve2",region="r",state="free"} 16
# HELP karpenter_proxmox_host_online 1 if Proxmox reports a host as online, 0 if not, as of the last good snapshot.
# TYPE karpenter_proxmox_host_online gauge
karpenter_proxmox_host_online{host="pve1",region="r"} 1
karpenter_proxmox_host_online{host="pve2",region="r"} 0
# HELP karpenter_proxmox_host_usable 1 if a host accepts new VMs, 0 if not.
# TYPE karpenter_proxmox_host_usable gauge
karpenter_proxmox_host_usable{host="pve1",region="r"} 1
karpenter_proxmox_host_usable{host="pve2",region="r"} 0
# HELP karpenter_proxmox_inventory_age_seconds Age of the last good snapshot of a Proxmox cluster.
# TYPE karpenter_proxmox_inventory_age_seconds gauge
karpenter_proxmox_inventory_age_seconds{region="r"} 7
# HELP karpenter_proxmox_inventory_poll_errors_total Failed polls of a Proxmox cluster's resources.
# TYPE karpenter_proxmox_inventory_poll_errors_total counter
karpenter_proxmox_inventory_poll_errors_total{region="r"} 1
`
	err := testutil.GatherAndCompare(registry, strings.NewReader(want), "karpenter_proxmox_cluster_quorate", "karpenter_proxmox_host_cpus", "karpenter_proxmox_host_online", "karpenter_proxmox_host_usable",
		"karpenter_proxmox_inventory_age_seconds", "karpenter_proxmox_inventory_poll_errors_total")
	g.Expect(err).NotTo(HaveOccurred())
	problems, err := testutil.GatherAndLint(registry)
	g.Expect(err).NotTo(HaveOccurred(), "the metrics violate Prometheus conventions")
	g.Expect(len(problems)).To(BeNumerically("<=", 0), "the metrics violate Prometheus conventions")
	g.Expect(inventory.New(nil, inventory.Options{Registerer: registry})).Error().To(HaveOccurred(), "New registered the same metrics twice")
}

func TestMetricsNoQuorum(t *testing.T) {
	t.Parallel()
	c, registry := newCluster("r", host("pve1", 16, 64)), prometheus.NewRegistry()
	i := newInventoryWith(t, inventory.Options{Registerer: registry}, c)
	c.change(func() { c.failure = proxmox.ErrNoQuorum })
	_ = i.Refresh(t.Context(), "r")
	const want = `
# HELP karpenter_proxmox_cluster_quorate 0 while a Proxmox cluster reports that it has no quorum, 1 otherwise.
# TYPE karpenter_proxmox_cluster_quorate gauge
karpenter_proxmox_cluster_quorate{region="r"} 0
`
	NewWithT(t).Expect(testutil.GatherAndCompare(registry, strings.NewReader(want), "karpenter_proxmox_cluster_quorate")).To(Succeed())
}
