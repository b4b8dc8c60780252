// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// setPool adds an address pool to the class.
func setPool(w *testenv.Env, source v1alpha1.AddressSource) {
	w.NodeClass.Spec.Network = &v1alpha1.Network{
		Interfaces: []v1alpha1.VMInterface{{Name: "net0", Address4: &source}},
		DNSServers: []string{"10.0.0.53"},
	}
}

func address(w *testenv.Env, claim *karpv1.NodeClaim) netip.Addr {
	w.T.Helper()
	addresses := w.Intent(claim).Network.Addresses()
	w.Expect(addresses).To(HaveLen(1))
	return addresses[0]
}

func planOnce(w *testenv.Env, p *testenv.Process, name string) error {
	w.T.Helper()
	claim := w.Claim(name, w.NodeClass)
	_, err := p.Instances.Planner.Plan(w.Context(), claim, w.NodeClass, false)
	if err != nil {
		w.Expect(w.Kube.Delete(w.Context(), claim)).To(Succeed())
	}
	return err
}

func TestPlanAddress(t *testing.T) {
	t.Parallel()
	testenv.With(testenv.Scenario(func(s *pvesim.Scenario) { s.Hosts[0].Bridges[0].CIDR = "10.0.0.2/24" })).Subtest(t, "released", func(w *testenv.Env, p *testenv.Process) {
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.100-10.0.0.101"}, Gateway: "10.0.0.1"})
		claim := p.Launched("default-a", w.NodeClass)
		addr := address(w, claim)
		w.Expect(w.VMConfig(w.Intent(claim)).Options).To(And(
			HaveKeyWithValue("ipconfig0", fmt.Sprintf("ip=%s/24,gw=10.0.0.1", addr)), HaveKeyWithValue("nameserver", "10.0.0.53")), "they are visible to other clients")

		// An ISO contains its files uncompressed.
		w.Expect(w.Booted(w.Intent(claim).VMID).CDROM).To(And(
			ContainSubstring(fmt.Sprintf("- %q", addr.String()+"/24")), ContainSubstring(`via: "10.0.0.1"`),
			ContainSubstring(`addresses: ["10.0.0.53"]`), ContainSubstring("dhcp4: false")))

		// The pool has two addresses.
		second := p.Planned("default-b", w.NodeClass)
		w.Expect(address(w, second)).NotTo(Equal(addr))
		w.Expect(planOnce(w, p, "default-c")).To(And(
			BeAssignableToTypeOf(&instance.InsufficientCapacityError{}), MatchError(ContainSubstring("all 2 addresses of 10.0.0.0/24 are taken"))))

		p.Delete(claim)
		third := p.Planned("default-d", w.NodeClass)
		w.Expect(address(w, third)).To(Equal(addr), "it was released")
	})
	// Two classes have overlapping pools with different gateways.
	testenv.With(testenv.Scenario(largeHost)).Subtest(t, "overlapping_pools", func(w *testenv.Env, p *testenv.Process) {
		var classes []*v1alpha1.ProxmoxNodeClass
		for name, source := range map[string]v1alpha1.AddressSource{
			"low":  {CIDR: "10.0.0.0/28", Ranges: []string{"10.0.0.1-10.0.0.8"}, Gateway: "10.0.0.9"},
			"high": {CIDR: "10.0.0.0/28", Ranges: []string{"10.0.0.5-10.0.0.12"}, Gateway: "10.0.0.6"},
		} {
			setPool(w, source)
			class := w.NodeClass.DeepCopy()
			class.Name, class.ResourceVersion = name, ""
			w.Expect(w.Kube.Create(w.Context(), class)).To(Succeed())
			classes = append(classes, class)
		}
		var got []string
		for i := range 16 {
			claim := w.Claim(fmt.Sprintf("default-%d", i), w.NodeClass)
			in, err := p.Instances.Planner.Plan(w.Context(), claim, classes[i%2], false)
			if err != nil {
				w.Expect(err).To(MatchError(ContainSubstring("are taken")))
				continue
			}
			got = append(got, address(w, w.SetPlanned(claim, classes[i%2], in)).String())
		}
		w.Expect(got).To(ConsistOf("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.7", "10.0.0.8", "10.0.0.10", "10.0.0.11", "10.0.0.12"),
			"each once, and no gateway")
	})
	testenv.With().Subtest(t, "taken_before_launch", func(w *testenv.Env, p *testenv.Process) {
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/29"})
		claim := p.Planned("default-a", w.NodeClass)
		takeAddress(w, address(w, claim))
		p.Inventory.InvalidateConfig(testenv.Region, 101)
		p.Refresh()
		w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(ContainSubstring("was taken by VM 101 in region region-1")))
		p.DeleteAll(claim)
	})
	testenv.With().Subtest(t, "parked", func(w *testenv.Env, p *testenv.Process) {
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.5/24"})
		first := p.Launched("default-a", w.NodeClass)
		w.Expect(address(w, first).String()).To(Equal("10.0.0.5"), "a single address is a pool")
		waiting, in := parked(w, p, w.Claim("default-waiting", w.NodeClass))
		w.Expect(in.Network).To(Equal(network.Assignment{}), "it reserves no address")
		w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrParked))
		p.Delete(first)
		w.Clock.Advance(time.Minute)
		w.Expect(p.Launch(waiting, w.NodeClass)).To(Succeed())
		w.Expect(address(w, w.Stored(waiting)).String()).To(Equal("10.0.0.5"))
	})
}

func TestPlanAddressSkipsOtherGuests(t *testing.T) {
	metrics := prometheus.NewRegistry()
	testenv.With(testenv.NoPolling(), testenv.Metrics(instance.NewMetrics(metrics)), testenv.Scenario(func(s *pvesim.Scenario) {
		config := map[string]string{"memory": "512", "ipconfig0": "ip=10.0.0.5/28"}
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 201, Name: "stopped", Host: "pve1", Config: config})
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "control-plane"}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.6"}, {Type: corev1.NodeHostName, Address: "control-plane"}},
		}})
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/28", Ranges: []string{"10.0.0.5-10.0.0.7"}})
		w.Expect(address(w, p.Planned("default-a", w.NodeClass)).String()).To(Equal("10.0.0.7"))
		w.Expect(planOnce(w, p, "default-none")).To(MatchError(ContainSubstring("all 3 addresses")))
		w.Expect(testenv.Metric(t, metrics, "karpenter_proxmox_address_pool_exhausted_total")).To(HaveKeyWithValue("default", 1.0))
		w.Expect(p.Types.UnavailableReason(w.NodeClass, "", placement.Zone{Region: testenv.Region, Host: "pve1"})).To(ContainSubstring("are taken"))
	})
}

// takeAddress sets an address for another guest, as an administrator does.
func takeAddress(w *testenv.Env, address netip.Addr) {
	w.T.Helper()
	change := proxmox.ConfigChange{Set: map[string]string{"ipconfig0": fmt.Sprintf("ip=%s/29", address), "name": "renamed"}}
	w.Expect(w.Client.UpdateVM(w.Context(), "pve1", 101, change)).To(Succeed())
	w.ResetForeignGuests()
}

// After a restart, a launch that has not begun gets another address if its own was taken, but not one that
// another claim holds.
func TestResumeAddressTaken(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]bool{"another_free": true, "none_free": false} {
		testenv.With().Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			ranges := "10.0.0.2-10.0.0.3"
			if free {
				ranges = "10.0.0.2-10.0.0.4"
			}
			setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/29", Ranges: []string{ranges}, Gateway: "10.0.0.1"})
			kept, moved := p.Planned("default-a", w.NodeClass), p.Planned("default-b", w.NodeClass)
			before, taken := address(w, kept), address(w, moved)
			takeAddress(w, taken)
			p = w.StartProcess()
			if free {
				p.MustLaunch(moved, w.NodeClass)
				w.Expect(address(w, moved)).NotTo(Or(Equal(before), Equal(taken)))
			} else {
				w.Expect(p.Launch(moved, w.NodeClass)).To(And(testenv.HaveReason(v1alpha1.EventInsufficientCapacity), MatchError(ContainSubstring("all 2 addresses"))))
			}
			p.MustLaunch(kept, w.NodeClass)
			w.Expect(address(w, kept)).To(Equal(before))
		})
	}
}
