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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// pooled gives the class's VMs addresses of a subnet.
func (w *world) pooled(source v1alpha1.AddressSource) {
	w.class.Spec.Network = &v1alpha1.Network{
		Interfaces: []v1alpha1.InterfaceAddresses{{Name: "net0", Address4: &source}},
		DNSServers: []string{"10.0.0.53"},
	}
}

func (w *world) addressOf(claim *karpv1.NodeClaim) netip.Addr {
	w.t.Helper()
	in, ok, err := instance.ReadIntent(claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(ok).To(BeTrue())
	w.Expect(in.Network.Addresses()).To(HaveLen(1))
	return in.Network.Addresses()[0]
}

func (w *world) plan(p *process, name string) error {
	w.t.Helper()
	claim := w.claim(name)
	_, err := p.Planner.Plan(w.t.Context(), claim, w.class, nil)
	if err != nil {
		w.Expect(w.kube.Delete(w.t.Context(), claim)).To(Succeed())
	}
	return err
}

func TestAVMGetsAnAddressAndGivesItBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(s *pvesim.Scenario) { s.Hosts[0].Bridges[0].CIDR = "10.0.0.2/24" })
	w.pooled(v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.100-10.0.0.101"}, Gateway: "10.0.0.1"})
	p := w.process()
	claim := w.launched(p, "default-a")
	addr := w.addressOf(claim)

	in, _, err := instance.ReadIntent(claim)
	w.Expect(err).NotTo(HaveOccurred())
	cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Options).To(HaveKeyWithValue("ipconfig0", fmt.Sprintf("ip=%s/24,gw=10.0.0.1", addr)), "others can see it")
	w.Expect(cfg.Options).To(HaveKeyWithValue("nameserver", "10.0.0.53"))

	var drive any
	w.Eventually(func() (ok bool) { drive, ok = w.booted.Load(in.VMID); return ok }).WithTimeout(30 * time.Second).Should(BeTrue())
	config := string(drive.([]byte)) // an ISO holds its files as they are
	w.Expect(config).To(And(
		ContainSubstring(fmt.Sprintf("- %q", addr.String()+"/24")), ContainSubstring(`via: "10.0.0.1"`),
		ContainSubstring(`addresses: ["10.0.0.53"]`), ContainSubstring("dhcp4: false")))

	// The other address is left, then none.
	second := w.planned(p, "default-b")
	w.Expect(w.addressOf(second)).NotTo(Equal(addr))
	err = w.plan(p, "default-c")
	var noRoom *instance.InsufficientCapacityError
	w.Expect(err).To(BeAssignableToTypeOf(noRoom))
	w.Expect(err).To(MatchError(ContainSubstring("all 2 addresses of 10.0.0.0/24 are taken")))

	w.deleted(p, claim)
	third := w.planned(p, "default-d")
	w.Expect(w.addressOf(third)).To(Equal(addr), "it came back")
}

func TestTheAddressOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.pooled(v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.100-10.0.0.102"}})
	promised := w.planned(w.process(), "default-promised")
	next := w.process()
	// Nothing of the first claim's is on Proxmox yet: only its intent tells.
	others := []netip.Addr{w.addressOf(w.planned(next, "default-b")), w.addressOf(w.planned(next, "default-c"))}
	w.Expect(others).NotTo(ContainElement(w.addressOf(promised)))
	w.Expect(w.plan(next, "default-d")).To(MatchError(ContainSubstring("all 3 addresses")))

	w.Expect(next.Launcher.Launch(t.Context(), promised, w.class)).To(Succeed())
	in, _, err := instance.ReadIntent(w.reread(promised))
	w.Expect(err).NotTo(HaveOccurred())
	cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Addresses()).To(ConsistOf(w.addressOf(promised)), "a restart in the middle keeps it")
}

func TestAddressesOfOthersAreSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(s *pvesim.Scenario) {
		s.Hosts[0].Bridges[0].CIDR, s.Hosts[0].Bridges[0].Gateway = "10.0.0.1/28", "10.0.0.2"
		s.Guests = append(s.Guests,
			pvesim.Guest{VMID: 201, Name: "stopped", Host: "pve1", Config: map[string]string{"memory": "512", "ipconfig0": "ip=10.0.0.3/28"}},
			pvesim.Guest{VMID: 202, Name: "dns", Host: "pve1", Type: "lxc", Status: "running", Config: map[string]string{
				"memory": "512", "net0": "name=eth0,bridge=vmbr0,ip=10.0.0.4/28,gw=10.0.0.2",
			}},
			pvesim.Guest{VMID: 203, Name: "sdn", Host: "pve1", Config: map[string]string{"memory": "512", "net0": "virtio=BC:24:11:09:00:01,bridge=blue"}},
		)
		s.Zones = []pvesim.Zone{{Zone: "lab", Type: "simple", IPAM: "pve", DHCP: "dnsmasq"}}
		s.VNets = []pvesim.VNet{{VNet: "blue", Zone: "lab", Subnet: "10.0.0.4/30"}} // it gives 10.0.0.5
	})
	w.Expect(w.kube.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "control-plane"}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.6"}, {Type: corev1.NodeHostName, Address: "control-plane"}},
	}})).To(Succeed())
	w.pooled(v1alpha1.AddressSource{CIDR: "10.0.0.0/28", Ranges: []string{"10.0.0.1-10.0.0.8"}})
	p := w.process()
	var got []string
	for i := range 2 {
		got = append(got, w.addressOf(w.planned(p, fmt.Sprintf("default-%d", i))).String())
	}
	w.Expect(got).To(ConsistOf("10.0.0.7", "10.0.0.8"))
	w.Expect(w.plan(p, "default-none")).To(MatchError(ContainSubstring("all 8 addresses")))
}

func TestTwoKubernetesClustersShareASubnet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.pooled(v1alpha1.AddressSource{CIDR: "10.0.0.0/29", Gateway: "10.0.0.1"})
	neighbour := w.process(inCluster("another"))
	taken := w.addressOf(w.launched(neighbour, "other-a"))
	p := w.process()
	for i := range 4 {
		w.Expect(w.addressOf(w.planned(p, fmt.Sprintf("default-%d", i)))).NotTo(Equal(taken))
	}
	w.Expect(w.plan(p, "default-none")).To(MatchError(ContainSubstring("all 5 addresses")))
}

func TestAVMDoesNotStartWithSomebodyElsesAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.pooled(v1alpha1.AddressSource{CIDR: "10.0.0.0/29"})
	p := w.process()
	claim := w.planned(p, "default-a")
	// Somebody gives a guest of theirs the same address by hand.
	change := proxmox.ConfigChange{Set: map[string]string{"ipconfig0": fmt.Sprintf("ip=%s/29", w.addressOf(claim)), "name": "renamed"}}
	w.Expect(w.client().UpdateVM(t.Context(), "pve1", 101, change)).To(Succeed())
	w.foreign = w.guestsOfOthers()
	second := w.process() // its view is fresh
	w.Eventually(func(g Gomega) {
		err := second.Launcher.Launch(t.Context(), claim, w.class)
		g.Expect(err).To(MatchError(ContainSubstring("was taken meanwhile by VM 101 in region region-1")))
	}).WithTimeout(30 * time.Second).Should(Succeed())
	w.deleted(second, w.reread(claim))
	w.expectNothingLeft()
}

func TestAParkedClaimWaitsForAnAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.pooled(v1alpha1.AddressSource{CIDR: "10.0.0.5/24"})
	p := w.process()
	first := w.launched(p, "default-a")
	w.Expect(w.addressOf(first).String()).To(Equal("10.0.0.5"), "the address of one host is for one VM")
	waiting := w.claim("default-waiting")
	in, err := p.Planner.Park(t.Context(), waiting, w.class, nil)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(in.Network).To(Equal(network.Assignment{}), "it holds no address")
	waiting = w.reread(waiting)
	waiting.Status.ProviderID = in.ProviderID()
	w.Expect(w.kube.Status().Update(t.Context(), waiting)).To(Succeed())
	w.Expect(p.Launcher.Launch(t.Context(), waiting, w.class)).To(MatchError(instance.ErrParked))
	w.deleted(p, first)
	w.Eventually(func() error { return p.Launcher.Launch(t.Context(), waiting, w.class) }).WithTimeout(30 * time.Second).Should(Succeed())
	w.Expect(w.addressOf(w.reread(waiting)).String()).To(Equal("10.0.0.5"))
}

// Two classes share a part of a subnet, and have a router each.
func TestPoolsOfTwoClassesGiveNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, roomy)
	p := w.process()
	var classes []*v1alpha1.ProxmoxNodeClass
	for name, source := range map[string]v1alpha1.AddressSource{
		"low":  {CIDR: "10.0.0.0/28", Ranges: []string{"10.0.0.1-10.0.0.8"}, Gateway: "10.0.0.9"},
		"high": {CIDR: "10.0.0.0/28", Ranges: []string{"10.0.0.5-10.0.0.12"}, Gateway: "10.0.0.6"},
	} {
		w.pooled(source)
		class := w.class.DeepCopy()
		class.Name, class.ResourceVersion = name, ""
		w.Expect(w.kube.Create(t.Context(), class)).To(Succeed())
		classes = append(classes, class)
	}
	var all sync.WaitGroup
	claims := make([]*karpv1.NodeClaim, 16)
	for i := range claims {
		claim := w.claim(fmt.Sprintf("default-%d", i))
		all.Go(func() {
			if _, err := p.Planner.Plan(t.Context(), claim, classes[i%2], nil); err == nil {
				claims[i] = claim
			} else if !strings.Contains(err.Error(), "are taken") {
				t.Errorf("claim %s: %v", claim.Name, err)
			}
		})
	}
	all.Wait()
	var got []string
	for _, claim := range claims {
		if claim != nil {
			got = append(got, w.addressOf(w.reread(claim)).String())
		}
	}
	w.Expect(got).To(ConsistOf("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.7", "10.0.0.8", "10.0.0.10", "10.0.0.11", "10.0.0.12"),
		"each once, and neither router")
}
