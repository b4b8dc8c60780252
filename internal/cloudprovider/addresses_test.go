// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func twoAddresses(c *v1alpha1.ProxmoxNodeClass) {
	c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
		Name: "net0", Address4: &v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.5-10.0.0.6"}, Gateway: "10.0.0.1"},
	}}}
}

// After a start the addresses in use are not known yet. Claims that core creates before would be
// refused, and a claim does not wait for the next poll: its launch reads them itself.
func TestCreateAddressPoolExhausted(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		metrics := prometheus.NewRegistry()
		w := testenv.New(t, testenv.Hosts(2), testenv.NoPolling())
		class := w.Class(twoAddresses)
		pool := w.Pool(class)
		w.Expect(plan.RegisterAddressPoolMetrics(metrics, w.Kube, w.Inventory)).To(Succeed())
		available := func() (n int) {
			types, err := w.CloudProvider().GetInstanceTypes(t.Context(), pool)
			w.Expect(err).NotTo(HaveOccurred())
			for _, it := range types {
				n += len(it.Offerings.Available())
			}
			return n
		}
		expectReason := func(reason string) {
			w.Expect(available()).To(BeZero())
			w.Expect(w.Types.UnavailableReasons(class, testenv.InstanceType)).To(HaveKeyWithValue(
				placement.Zone{Region: testenv.Region, Host: "pve2"}, ContainSubstring(reason)))
		}
		expectReason("the addresses of the guests in region " + testenv.Region + " are still being read")
		first := w.Claim("a", class)
		create(w, first)

		pooled, _ := plan.AddressPoolState(w.Inventory, class) // like the status controller
		w.Expect(pooled).To(BeTrue())
		w.Refresh()
		w.Expect(available()).To(BeNumerically(">", 0))
		create(w, w.Claim("b", class))
		const reason = "spec.network.interfaces[0].address4: all 2 addresses of 10.0.0.0/24 are taken"
		_, err := w.CloudProvider().Create(t.Context(), w.Claim("c", class))
		w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
		w.Expect(err).To(MatchError(ContainSubstring(reason)))
		expectReason(reason)
		w.Expect(testutil.GatherAndCompare(metrics, strings.NewReader(`
# HELP karpenter_proxmox_address_pool_size Addresses of a pool of a NodeClass.
# TYPE karpenter_proxmox_address_pool_size gauge
karpenter_proxmox_address_pool_size{interface="net0",nodeclass="default",pool="10.0.0.0/24"} 2
# HELP karpenter_proxmox_address_pool_used Addresses of a pool of a NodeClass that are in use or reserved.
# TYPE karpenter_proxmox_address_pool_used gauge
karpenter_proxmox_address_pool_used{interface="net0",nodeclass="default",pool="10.0.0.0/24"} 2
`))).To(Succeed())

		w.Instances.Planner.Release(string(first.UID))
		w.Expect(available()).To(BeNumerically(">", 0), "an address was released")
	})
}

// A Node that is not a VM of ours has the last address: only Create finds out, and counts it.
func TestCreateCountsExhaustedPool(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		metrics := prometheus.NewRegistry()
		w := testenv.New(t, testenv.NoPolling(), testenv.Metrics(instance.NewMetrics(metrics)))
		class := w.Class(twoAddresses)
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "metal"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.5"}, {Type: corev1.NodeExternalIP, Address: "10.0.0.6"},
		}}})
		_, err := w.CloudProvider().Create(t.Context(), w.Claim("a", class))
		w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
		w.Expect(testutil.GatherAndCompare(metrics, strings.NewReader(`
# HELP karpenter_proxmox_address_pool_exhausted_total VMs that could not be launched because all addresses of a pool were taken.
# TYPE karpenter_proxmox_address_pool_exhausted_total counter
karpenter_proxmox_address_pool_exhausted_total{nodeclass="default",pool="10.0.0.0/24"} 1
`), "karpenter_proxmox_address_pool_exhausted_total")).To(Succeed())
		w.Expect(w.Types.UnavailableReason(class, "", placement.Zone{Region: testenv.Region, Host: "pve1"})).To(ContainSubstring("are taken"))
	})
}
