// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
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
	testenv.With(testenv.Scenario(func(s *pvesim.Scenario) { s.Hosts[0].Bridges[0].CIDR = "10.0.0.2/24" })).Test(t, func(w *testenv.Env, p *testenv.Process) {
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
}

func TestPlanAddressAfterRestart(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.100-10.0.0.102"}})
		planned := p.Planned("default-planned", w.NodeClass)
		next := w.StartProcess()
		// The VM of the first claim does not exist: the address is only in the intent.
		others := []netip.Addr{address(w, next.Planned("default-b", w.NodeClass)), address(w, next.Planned("default-c", w.NodeClass))}
		w.Expect(others).NotTo(ContainElement(address(w, planned)))
		w.Expect(planOnce(w, next, "default-d")).To(MatchError(ContainSubstring("all 3 addresses")))

		w.Expect(next.Launch(planned, w.NodeClass)).To(Succeed())
		w.Expect(w.VMConfig(w.Intent(planned)).Network().Addresses()).To(ConsistOf(address(w, planned)), "it is kept after a restart")
	})
}

func TestPlanAddressSkipsOtherGuests(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Hosts[0].Bridges[0].CIDR, s.Hosts[0].Bridges[0].Gateway = "10.0.0.1/28", "10.0.0.2"
		s.Guests = append(s.Guests,
			pvesim.Guest{VMID: 201, Name: "stopped", Host: "pve1", Config: map[string]string{"memory": "512", "ipconfig0": "ip=10.0.0.3/28"}},
			pvesim.Guest{VMID: 202, Name: "dns", Host: "pve1", Type: "lxc", Status: "running", Config: map[string]string{
				"memory": "512", "net0": "name=eth0,bridge=vmbr0,ip=10.0.0.4/28,gw=10.0.0.2",
			}},
			pvesim.Guest{VMID: 203, Name: "sdn", Host: "pve1", Config: map[string]string{"memory": "512", "net0": "virtio=BC:24:11:09:00:01,bridge=blue"}},
		)
		s.Zones = []pvesim.Zone{{Zone: "lab", Type: "simple", IPAM: "pve", DHCP: "dnsmasq"}}
		s.VNets = []pvesim.VNet{{VNet: "blue", Zone: "lab", Subnet: "10.0.0.4/30"}} // its DHCP assigns 10.0.0.5
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "control-plane"}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.6"}, {Type: corev1.NodeHostName, Address: "control-plane"}},
		}})
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/28", Ranges: []string{"10.0.0.1-10.0.0.8"}})
		var got []string
		for i := range 2 {
			got = append(got, address(w, p.Planned(fmt.Sprintf("default-%d", i), w.NodeClass)).String())
		}
		w.Expect(got).To(ConsistOf("10.0.0.7", "10.0.0.8"))
		w.Expect(planOnce(w, p, "default-none")).To(MatchError(ContainSubstring("all 8 addresses")))
	})
}

func TestPlanAddressSharedSubnet(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/29", Gateway: "10.0.0.1"})
		neighbor := w.StartProcess(testenv.KubeCluster("another"))
		taken := address(w, neighbor.Launched("other-a", w.NodeClass))
		p.Refresh()
		for i := range 4 {
			w.Expect(address(w, p.Planned(fmt.Sprintf("default-%d", i), w.NodeClass))).NotTo(Equal(taken))
		}
		w.Expect(planOnce(w, p, "default-none")).To(MatchError(ContainSubstring("all 5 addresses")))
	})
}

func TestLaunchAddressConflict(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, p *testenv.Process) {
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/29"})
		claim := p.Planned("default-a", w.NodeClass)
		// An administrator sets the same address for another guest.
		change := proxmox.ConfigChange{Set: map[string]string{"ipconfig0": fmt.Sprintf("ip=%s/29", address(w, claim)), "name": "renamed"}}
		w.Expect(w.Client.UpdateVM(w.Context(), "pve1", 101, change)).To(Succeed())
		w.ResetForeignGuests()
		p.Inventory.InvalidateConfig(testenv.Region, 101)
		p.Refresh()
		w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(ContainSubstring("was taken by VM 101 in region region-1")))
		p.DeleteAll(claim)
	})
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
			change := proxmox.ConfigChange{Set: map[string]string{"ipconfig0": fmt.Sprintf("ip=%s/29", taken), "name": "renamed"}}
			w.Expect(w.Client.UpdateVM(w.Context(), "pve1", 101, change)).To(Succeed())
			w.ResetForeignGuests()
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

func TestUnparkWaitsForAddress(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, p *testenv.Process) {
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

// Two classes have overlapping pools with different gateways.
func TestPlanAddressOverlappingPools(t *testing.T) {
	testenv.With(testenv.Scenario(largeHost)).Test(t, func(w *testenv.Env, p *testenv.Process) {
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
		var all sync.WaitGroup
		claims := make([]*karpv1.NodeClaim, 16)
		for i := range claims {
			claim := w.Claim(fmt.Sprintf("default-%d", i), w.NodeClass)
			all.Go(func() {
				if in, err := p.Instances.Planner.Plan(w.Context(), claim, classes[i%2], false); err == nil {
					claims[i] = w.SetPlanned(claim, classes[i%2], in)
				} else if !strings.Contains(err.Error(), "are taken") {
					w.T.Errorf("claim %s: %v", claim.Name, err)
				}
			})
		}
		all.Wait()
		var got []string
		for _, claim := range claims {
			if claim != nil {
				got = append(got, address(w, w.Stored(claim)).String())
			}
		}
		w.Expect(got).To(ConsistOf("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.7", "10.0.0.8", "10.0.0.10", "10.0.0.11", "10.0.0.12"),
			"each once, and no gateway")
	})
}
