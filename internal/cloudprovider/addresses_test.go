// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
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

// available returns the number of available offerings.
func available(types []*corecloudprovider.InstanceType) (n int) {
	for _, it := range types {
		n += len(it.Offerings.Available())
	}
	return n
}

// After a start the addresses in use are not known yet. Claims that core creates before
// would be refused.
func TestGetInstanceTypesBeforeAddressesAreKnown(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2), testenv.NoPolling())
	class := w.Class(twoAddresses)
	pool, p := w.Pool(class), provider(w)
	types, err := p.GetInstanceTypes(t.Context(), pool)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(available(types)).To(BeZero())
	w.Expect(w.Types.UnavailableReasons(class, testenv.InstanceType)).To(HaveKeyWithValue(
		placement.Zone{Region: testenv.Region, Host: "pve2"}, "the addresses of the guests in region "+testenv.Region+" are still being read"))

	plan.AddressPoolState(w.Inventory, class) // like the status controller
	w.Refresh()
	types, err = p.GetInstanceTypes(t.Context(), pool)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(available(types)).To(BeNumerically(">", 0))

	// A claim does not wait for the next poll after a restart.
	w.Restart(true)
	_, err = provider(w).Create(t.Context(), w.Claim("a", class))
	w.Expect(err).NotTo(HaveOccurred(), "the first launch reads them itself")
}

func TestCreateAddressPoolExhausted(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	w := testenv.New(t, testenv.Hosts(2), testenv.Metrics(instance.NewMetrics(metrics)))
	class := w.Class(twoAddresses)
	pool := w.Pool(class)
	w.Expect(plan.RegisterAddressPoolMetrics(metrics, w.Kube, w.Inventory)).To(Succeed())
	p := provider(w)
	pooled, _ := plan.AddressPoolState(w.Inventory, class) // like the status controller
	w.Expect(pooled).To(BeTrue())
	w.Refresh()
	types, err := p.GetInstanceTypes(t.Context(), pool)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(available(types)).To(BeNumerically(">", 0))

	claims := []*karpv1.NodeClaim{w.Claim("a", class), w.Claim("b", class)}
	for _, claim := range claims {
		_, err := p.Create(t.Context(), claim)
		w.Expect(err).NotTo(HaveOccurred())
	}
	const reason = "spec.network.interfaces[0].address4: all 2 addresses of 10.0.0.0/24 are taken"
	_, err = p.Create(t.Context(), w.Claim("c", class))
	w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
	w.Expect(err).To(MatchError(ContainSubstring(reason)))

	types, err = p.GetInstanceTypes(t.Context(), pool)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(available(types)).To(BeZero(), "unavailable without an address")
	w.Expect(w.Types.UnavailableReasons(class, testenv.InstanceType)).To(HaveKeyWithValue(
		placement.Zone{Region: testenv.Region, Host: "pve2"}, ContainSubstring(reason)))
	w.Eventually(func() error {
		return testutil.GatherAndCompare(metrics, strings.NewReader(fmt.Sprintf(`
# HELP karpenter_proxmox_address_pool_size Addresses of a pool of a NodeClass.
# TYPE karpenter_proxmox_address_pool_size gauge
karpenter_proxmox_address_pool_size{interface="net0",nodeclass=%q,pool="10.0.0.0/24"} 2
# HELP karpenter_proxmox_address_pool_used Addresses of a pool of a NodeClass that are in use or reserved.
# TYPE karpenter_proxmox_address_pool_used gauge
karpenter_proxmox_address_pool_used{interface="net0",nodeclass=%q,pool="10.0.0.0/24"} 2
`, class.Name, class.Name)), "karpenter_proxmox_address_pool_size", "karpenter_proxmox_address_pool_used")
	}).Should(Succeed(), "there are no metrics if the API server responds too late")

	w.Instances.Planner.Release(string(claims[0].UID))
	types, err = p.GetInstanceTypes(t.Context(), pool)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(available(types)).To(BeNumerically(">", 0), "an address was released")
}

// A Node that is not a VM of ours has the last address: only Create finds out, and counts it.
func TestCreateCountsExhaustedPool(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	w := testenv.New(t, testenv.NoPolling(), testenv.Metrics(instance.NewMetrics(metrics)))
	class := w.Class(twoAddresses)
	metal := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named("metal")}}
	w.Create(metal)
	metal.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.5"}, {Type: corev1.NodeExternalIP, Address: "10.0.0.6"}}
	w.Expect(w.Kube.Status().Update(t.Context(), metal)).To(Succeed())
	_, err := provider(w).Create(t.Context(), w.Claim("a", class))
	w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
	w.Expect(testutil.GatherAndCompare(metrics, strings.NewReader(fmt.Sprintf(`
# HELP karpenter_proxmox_address_pool_exhausted_total VMs that could not be launched because all addresses of a pool were taken.
# TYPE karpenter_proxmox_address_pool_exhausted_total counter
karpenter_proxmox_address_pool_exhausted_total{nodeclass=%q,pool="10.0.0.0/24"} 1
`, class.Name)), "karpenter_proxmox_address_pool_exhausted_total")).To(Succeed())
	w.Expect(w.Types.UnavailableReason(class, "", placement.Zone{Region: testenv.Region, Host: "pve1"})).To(ContainSubstring("are taken"))
}
