// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// setMachines gives the class a machine on each host: db-1 with the address 10.0.0.11 on pve1, db-2
// with 10.0.0.12 on pve2.
func setMachines(w *testenv.Env) {
	setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.100-10.0.0.120"}, Gateway: "10.0.0.1"})
	for n := range 2 {
		w.NodeClass.Spec.Machines = append(w.NodeClass.Spec.Machines, v1alpha1.Machine{
			Name: fmt.Sprintf("db-%d", n+1), Zone: fmt.Sprintf("pve%d", n+1),
			Addresses: []v1alpha1.MachineAddresses{{Interface: "net0", Address4: fmt.Sprintf("10.0.0.%d", n+11)}},
		})
	}
}

// testMachines runs a test with two machines.
func testMachines(t *testing.T, test func(w *testenv.Env, p *testenv.Process)) {
	t.Helper()
	testenv.With(testenv.Hosts(2), testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		setMachines(w)
		test(w, p)
	})
}

func TestPlanMachines(t *testing.T) {
	testMachines(t, func(w *testenv.Env, p *testenv.Process) {
		machines, claims := map[string]instance.Intent{}, map[string]*karpv1.NodeClaim{}
		var waiting *karpv1.NodeClaim
		for _, name := range []string{"pool-a", "pool-b", "pool-c"} {
			claim := w.Claim(name, w.NodeClass)
			in, err := p.Instances.Planner.Plan(w.Context(), claim, w.NodeClass, false)
			if err != nil {
				w.Expect(err).To(MatchError(And(ContainSubstring("db-1 is held by"), ContainSubstring("db-2 is held by"))))
				waiting = claim
				continue
			}
			machines[in.Machine], claims[in.Machine] = in, claim
		}
		w.Expect(machines).To(HaveLen(2))
		for name, in := range machines {
			w.SetPlanned(claims[name], w.NodeClass, in)
			machine, _ := w.NodeClass.Spec.FindMachine(name)
			w.Expect(in.Host).To(Equal(machine.Zone))
			w.Expect(in.Network.Addresses()).To(HaveExactElements(HaveField("String()", machine.Addresses[0].Address4)))
			w.Expect(in.Network.Interfaces["net0"].Gateway4.String()).To(Equal("10.0.0.1"))
		}
		_, err := w.StartProcess().Instances.Planner.Plan(w.Context(), waiting, w.NodeClass, false)
		w.Expect(err).To(MatchError(ContainSubstring("has no machine for this NodeClaim")), "after a restart")
	})
}

// The VM of a machine is replaced: name, host, address and MAC stay.
func TestReplaceMachine(t *testing.T) {
	testMachines(t, func(w *testenv.Env, p *testenv.Process) {
		first := p.Launched("pool-a", w.NodeClass)
		before := w.Intent(first)
		w.Expect(before.Machine).To(Equal("db-1"))
		w.Expect(w.VMConfig(before).Name()).To(Equal("db-1"))
		p.Launched("pool-b", w.NodeClass)

		claim := w.Claim("pool-c", w.NodeClass)
		_, err := p.Instances.Planner.Plan(w.Context(), claim, w.NodeClass, false)
		w.Expect(err).To(BeAssignableToTypeOf(&instance.InsufficientCapacityError{}))
		claim, _ = parked(w, p, claim)
		w.Expect(p.Launch(claim, w.NodeClass)).To(And(MatchError(instance.ErrParked),
			MatchError(And(ContainSubstring("db-1 is held by NodeClaim pool-a"), ContainSubstring("set limits.nodes to replicas")))))

		p.Delete(first)
		w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(instance.ErrParked), "the NodeClaim and its Node still exist")
		w.Expect(w.Kube.Delete(w.Context(), first)).To(Succeed())
		p = w.StartProcess()
		w.Expect(p.Launch(w.Stored(claim), w.NodeClass)).To(Succeed())
		after := w.Intent(w.Stored(claim))
		w.Expect(after).To(And(HaveField("Machine", "db-1"), HaveField("Host", before.Host), HaveField("Network.Addresses()", before.Network.Addresses()),
			HaveField("MACs", before.MACs), HaveField("VMID", Not(Equal(before.VMID)))))
		w.Expect(w.VMConfig(after).Name()).To(Equal("db-1"))
	})
}

// A parked claim waits for a host, and the machine of another one becomes free.
func TestUnparkMachineElsewhere(t *testing.T) {
	testMachines(t, func(w *testenv.Env, p *testenv.Process) {
		p.Planned("pool-a", w.NodeClass)
		second := p.Planned("pool-b", w.NodeClass)
		claim, in := parked(w, p, w.Claim("pool-c", w.NodeClass))
		w.Expect(in.Host).To(Equal("pve1"))
		finish(w, p, second)
		w.Expect(p.Launch(claim, w.NodeClass)).To(And(
			testenv.HaveReason(v1alpha1.EventInsufficientCapacity), MatchError(ContainSubstring("machine db-2 on host pve2 is free"))))
	})
}

// A claim is parked on the host of the machine that is released next.
func TestParkReleasedMachine(t *testing.T) {
	testMachines(t, func(w *testenv.Env, p *testenv.Process) {
		p.Planned("pool-a", w.NodeClass)
		second := p.Planned("pool-b", w.NodeClass)
		testenv.Modify(w, second, func(claim *karpv1.NodeClaim) { claim.Finalizers = []string{karpv1.TerminationFinalizer} })
		w.Expect(w.Kube.Delete(w.Context(), second)).To(Succeed())
		_, in := parked(w, p, w.Claim("pool-c", w.NodeClass))
		w.Expect(in.Host).To(Equal("pve2"))
	})
}

func TestPlanHeldMachines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*testenv.Env)
		want   string
	}{
		"node_with_its_name": {
			change: func(w *testenv.Env) { w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "db-1"}}) },
			want:   "db-1 is held by Node db-1",
		},
		"orphaned_VM": {
			change: func(w *testenv.Env) {
				claim := w.StartProcess().Launched("orphan", w.NodeClass)
				w.Expect(w.Kube.Delete(w.T.Context(), claim)).To(Succeed())
			},
			want: "db-1 is held by VM",
		},
		"host_not_usable": {
			change: func(w *testenv.Env) { w.NodeClass.Spec.Machines[0].Zone = "pve9" },
			want:   "host pve9 of machine db-1 is not usable now, or not allowed by the NodePool",
		},
		"address_of_another_guest": {
			change: func(w *testenv.Env) {
				w.NodeClass.Spec.Machines[0].Addresses = nil
				setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.100"}, Gateway: "10.0.0.1"})
				w.StartProcess().Launched("first", w.NodeClass)
				w.NodeClass.Spec.Machines[0] = v1alpha1.Machine{Name: "db-3", Addresses: []v1alpha1.MachineAddresses{{Interface: "net0", Address4: "10.0.0.100"}}}
			},
			want: "address 10.0.0.100 of machine db-3 is taken by NodeClaim",
		},
	} {
		testenv.With(testenv.Hosts(2)).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			setMachines(w)
			w.NodeClass.Spec.Machines = w.NodeClass.Spec.Machines[:1]
			c.change(w)
			w.Expect(planOnce(w, w.StartProcess(), "pool-a")).To(MatchError(ContainSubstring(c.want)))
		})
	}
}

// VMs without a machine do not get the addresses of machines.
func TestPlanReservesMachineAddresses(t *testing.T) {
	testMachines(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.Machines = w.NodeClass.Spec.Machines[:1]
		w.NodeClass.Spec.Network.Interfaces[0].Address4.Ranges = []string{"10.0.0.11-10.0.0.12"}
		w.Expect(w.Kube.Create(w.Context(), w.NodeClass)).To(Succeed())
		other := w.NodeClass.DeepCopy()
		other.Name, other.ResourceVersion, other.Spec.Machines = "other", "", nil
		w.Expect(w.Kube.Create(w.Context(), other)).To(Succeed())
		w.Expect(address(w, p.Planned("other-a", other)).String()).To(Equal("10.0.0.12"))
		w.Expect(address(w, p.Planned("pool-a", w.NodeClass)).String()).To(Equal("10.0.0.11"))
	})
}

// The address of a machine is taken: the next machine is used.
func TestPlanNextMachine(t *testing.T) {
	testMachines(t, func(w *testenv.Env, p *testenv.Process) {
		other := w.NodeClass.DeepCopy()
		other.Name, other.Spec.Machines = "other", nil
		other.Spec.Network.Interfaces[0].Address4.Ranges = []string{"10.0.0.11"}
		p.Planned("other-a", other)
		w.Expect(w.Intent(p.Planned("pool-a", w.NodeClass)).Machine).To(Equal("db-2"))
	})
}

func TestMachineDrift(t *testing.T) {
	t.Parallel()
	launched := instance.Intent{
		Region: "home", Host: "pve1", Machine: "db-1",
		Network: network.Assignment{Interfaces: map[string]network.InterfaceAddresses{"net0": {Address4: netip.MustParsePrefix("10.0.0.11/24")}}},
	}
	fixed := func(addresses v1alpha1.MachineAddresses) []v1alpha1.Machine {
		addresses.Interface = "net0"
		return []v1alpha1.Machine{{Name: "db-1", Addresses: []v1alpha1.MachineAddresses{addresses}}}
	}
	at := func(zone, region string) []v1alpha1.Machine {
		return []v1alpha1.Machine{{Name: "db-1", Zone: zone, Region: region}}
	}
	for name, c := range map[string]struct {
		machines []v1alpha1.Machine
		change   func(*instance.Intent)
		want     string // empty if it does not drift
	}{
		"unchanged":      {machines: fixed(v1alpha1.MachineAddresses{Address4: "10.0.0.11"})},
		"same_host":      {machines: at("pve1", "")},
		"parked":         {machines: at("", ""), change: func(in *instance.Intent) { in.Parked, in.Machine = true, "" }},
		"less_fixed":     {machines: at("", "")},
		"another_host":   {machines: at("pve2", ""), want: "machine db-1 was moved from host pve1 of region home to host pve2"},
		"another_region": {machines: at("pve1", "away"), want: "was moved"},
		"another_address": {
			machines: fixed(v1alpha1.MachineAddresses{Address4: "10.0.0.12"}), want: "the address of interface net0 of machine db-1 changed to 10.0.0.12",
		},
		"new_address":   {machines: fixed(v1alpha1.MachineAddresses{Address6: "fd00::1"}), want: "changed to fd00::1"},
		"removed":       {machines: []v1alpha1.Machine{{Name: "db-2"}}, want: "has no machine db-1 any more"},
		"first_machine": {machines: at("", ""), change: func(in *instance.Intent) { in.Machine = "" }, want: "has machines now"},
		"no_machines":   {change: func(in *instance.Intent) { in.Machine = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := launched
			if c.change != nil {
				c.change(&in)
			}
			got := instance.MachineDrift(in, &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{Machines: c.machines}})
			if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("drift is %q, want %q", got, c.want)
			}
		})
	}
}
