// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpevents "sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// The address pool has five addresses. Other guests use three of them, one of which only the
// guest agent reports, so two nodes can have an address.
var (
	pool4 = v1alpha1.AddressSource{CIDR: "172.16.0.0/12", Ranges: []string{"172.16.0.1-172.16.0.5"}, Gateway: "172.16.255.254"}
	pool6 = v1alpha1.AddressSource{CIDR: "fd77::/64", Ranges: []string{"fd77::1-fd77::9"}, Gateway: "fe80::1"}
	free4 = []string{"172.16.0.4", "172.16.0.5"}
)

const (
	taken6    = "fd77::2"
	fullPool4 = "all 5 addresses of 172.16.0.0/12 are taken"
)

func withForeignGuests(s *pvesim.Scenario) {
	s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.Config["template"] == "" })
	s.Guests = append(s.Guests,
		// The first guest that requests an address from the simulated DHCP server gets
		// 172.16.0.1.
		pvesim.Guest{VMID: 201, Name: "agent", Host: "pve1", Status: "running", Uptime: pvesim.Duration(time.Hour), Config: map[string]string{
			"memory": "512", "agent": "1", "net0": "virtio=BC:24:11:02:00:01,bridge=vmbr0",
		}},
		pvesim.Guest{VMID: 202, Name: "configured", Host: "pve2", Config: map[string]string{"memory": "512", "ipconfig0": "ip=172.16.0.2/12,ip6=" + taken6 + "/64"}},
		pvesim.Guest{VMID: 203, Name: "container", Host: "pve2", Type: "lxc", Status: "running", Config: map[string]string{
			"memory": "512", "net0": "name=eth0,bridge=vmbr0,ip=172.16.0.3/12",
		}},
	)
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "VM.GuestAgent.Audit")
	// A network where Proxmox assigns addresses, and a template on it.
	s.Zones = []pvesim.Zone{{Zone: "lab", Type: "simple", IPAM: "pve", DHCP: "dnsmasq"}}
	s.VNets = []pvesim.VNet{{VNet: "blue", Zone: "lab", Subnet: "10.9.0.0/24", Gateway: "10.9.0.1"}}
	blue := s.Guests[0]
	blue.VMID, blue.Name, blue.Config = 9100, "blue", maps.Clone(blue.Config)
	blue.Config["scsi0"], blue.Config["ide2"] = "local-lvm:base-9100-disk-0,size=3G", "local-lvm:vm-9100-cloudinit,media=cdrom"
	blue.Config["net0"] = "virtio=BC:24:11:09:00:01,bridge=blue"
	s.Guests = append(s.Guests, blue)
}

// TestAddresses checks that nodes get unused addresses of a pool and release them.
func TestAddresses(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it has other guests with addresses and fails a clone"))
	e := newEnv(t, setup{hosts: 2, version: "9.2", scenario: withForeignGuests})
	before, err := e.holdings(t.Context())
	must(t, err)
	t.Run("proxmox_IPAM", e.sdnNode)
	t.Run("address_pool", e.pooledNodes)
	if !t.Failed() {
		e.expectUnchanged(t, before)
	}
}

func (e *env) pooledNodes(t *testing.T) {
	p := e.newNodePool(t, "pooled", func(kit *harness.Kit) {
		kit.Class.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net0", Address4: &pool4, Address6: &pool6}}}
		kit.Pool.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("0")}
	})

	// All pods exist before the first NodeClaim: for a pod that comes when the pool is exhausted,
	// there would be none.
	p.deploy(t, 3, onePerNode)
	p.eventually(t, "three pods", func(ctx context.Context) error {
		pods, err := harness.Pods(ctx, p.kube, p.name)
		if err == nil && len(pods) != 3 {
			err = fmt.Errorf("there are %d", len(pods))
		}
		return err
	})
	must(t, e.kube.Patch(t.Context(), &karpv1.NodePool{ObjectMeta: p.kit.Pool.ObjectMeta},
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"limits":null}}`))))
	first := p.waitForAddresses(t)
	p.expectExhausted(t)

	// A deleted node and a failed launch release their addresses.
	_, err := e.proxmox.AddFault(pvesim.Fault{Task: "qmclone", Count: 1, Fail: "some unknown error"})
	must(t, err)
	must(t, e.kube.Delete(t.Context(), &first[0]))
	p.waitForDeletion(t, &first[0])
	p.waitForAddresses(t)
	if faults := e.proxmox.Faults(); faults[0].Hits != 1 {
		t.Errorf("%d launches failed, want 1", faults[0].Hits)
	}

	p.deleteAllClaims(t)
	p.waitForAddressesAvailable(t, metav1.ConditionTrue)
}

// sdnNode checks that a node on a virtual network with IPAM has the address that Proxmox
// assigned to its VM, and that Proxmox releases it when the VM is deleted.
func (e *env) sdnNode(t *testing.T) {
	p := e.newNodePool(t, "blue", func(kit *harness.Kit) { kit.Template.Spec.TemplateName = "blue" })
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	vm := vmOf(t, p, claim)
	assigned := e.sdnAddresses(t, vm.VMID)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	if got := node.Status.Addresses[0].Address; len(assigned) != 1 || got != assigned[0] || !strings.HasPrefix(got, "10.9.0.") {
		t.Errorf("the node has address %s, but Proxmox assigned %v to its VM", got, assigned)
	}
	p.deleteClaims(t, claim)
	if assigned := e.sdnAddresses(t, vm.VMID); len(assigned) != 0 {
		t.Errorf("Proxmox still reserves %v for VM %d", assigned, vm.VMID)
	}
}

// sdnAddresses returns the addresses that Proxmox's IPAM assigned to a VM.
func (e *env) sdnAddresses(t *testing.T, vmid int) (assigned []string) {
	t.Helper()
	var rows []struct{ IP, VMID string }
	must(t, e.api.Call(t.Context(), http.MethodGet, "/cluster/sdn/ipams/pve/status", nil, &rows))
	for _, row := range rows {
		if row.VMID == strconv.Itoa(vmid) {
			assigned = append(assigned, row.IP)
		}
	}
	return assigned
}

func onePerNode(d *appsv1.Deployment) {
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: d.Spec.Selector, TopologyKey: corev1.LabelHostname}},
	}}
}

// waitForAddresses waits until there are as many settled nodes as unused addresses. Each must
// have its own address of both pools, consistently in its guest, its Node and its VM's
// configuration.
func (p *nodePool) waitForAddresses(t *testing.T) []karpv1.NodeClaim {
	t.Helper()
	want := len(free4)
	var nodes []karpv1.NodeClaim
	p.eventually(t, fmt.Sprintf("%d settled nodes", want), func(ctx context.Context) error {
		claims, err := p.claims(ctx)
		nodes = slices.DeleteFunc(claims, func(c karpv1.NodeClaim) bool { return settled(&c) != nil || !c.DeletionTimestamp.IsZero() })
		if err == nil && len(nodes) != want {
			err = fmt.Errorf("there are %d", len(nodes))
		}
		return err
	})
	var got4, got6 []string
	for i := range nodes {
		node, err := p.node(t.Context(), &nodes[i])
		must(t, err)
		vm := vmOf(t, p, &nodes[i])
		seen := p.guestAddresses(t, vm)
		for _, a := range node.Status.Addresses {
			switch {
			case a.Type != corev1.NodeInternalIP:
				continue
			case strings.Contains(a.Address, ":"):
				got6 = append(got6, a.Address)
			default:
				got4 = append(got4, a.Address)
			}
			if !slices.Contains(seen, a.Address) || !strings.Contains(fmt.Sprint(vm.Config["ipconfig0"]), "="+a.Address+"/") {
				t.Errorf("node %s has address %s; its guest has %v, its VM %v", node.Name, a.Address, seen, vm.Config["ipconfig0"])
			}
		}
	}
	if slices.Sort(got4); !slices.Equal(got4, free4) {
		t.Errorf("the nodes have IPv4 addresses %v, want %v", got4, free4)
	}
	slices.Sort(got6)
	if len(got6) != want || len(slices.Compact(got6)) != want || slices.Contains(got6, taken6) {
		t.Errorf("the nodes have IPv6 addresses %v, want %d different ones without %s", got6, want, taken6)
	}
	return nodes
}

// guestAddresses returns the addresses that a VM's guest agent reports.
func (p *nodePool) guestAddresses(t *testing.T, vm harness.Guest) []string {
	t.Helper()
	var answer struct {
		Result []struct {
			IPs []struct {
				Address string `json:"ip-address"`
			} `json:"ip-addresses"`
		} `json:"result"`
	}
	must(t, p.api.Call(t.Context(), "GET", fmt.Sprintf("/nodes/%s/qemu/%d/agent/network-get-interfaces", vm.Host, vm.VMID), nil, &answer))
	var out []string
	for _, card := range answer.Result {
		for _, ip := range card.IPs {
			out = append(out, ip.Address)
		}
	}
	return out
}

// expectExhausted checks that an exhausted pool is reported on the NodeClass, in an event and
// in the metrics.
func (p *nodePool) expectExhausted(t *testing.T) {
	t.Helper()
	if message := p.waitForAddressesAvailable(t, metav1.ConditionFalse); !strings.Contains(message, fullPool4) {
		t.Errorf("the condition's message is %q, want it to contain %q", message, fullPool4)
	}
	p.eventually(t, "an event about the exhausted pool", func(ctx context.Context) error {
		events := &corev1.EventList{}
		if err := p.kube.List(ctx, events); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == karpevents.InsufficientCapacityError && strings.Contains(e.Message, fullPool4)
		}) {
			return errors.New("there is none")
		}
		return nil
	})
	labels := map[string]string{"nodeclass": p.name, "pool": pool4.CIDR}
	for name, want := range map[string]float64{"size": 5, "used": 5, "exhausted_total": 1} {
		name = "karpenter_proxmox_address_pool_" + name
		if got, err := p.controller.Metric(t.Context(), name, labels); err != nil || got < want {
			t.Errorf("metric %s is %v (%v), want at least %v", name, got, err, want)
		}
	}
}

// waitForAddressesAvailable waits for the NodeClass condition and returns its message.
func (p *nodePool) waitForAddressesAvailable(t *testing.T, want metav1.ConditionStatus) (message string) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("AddressesAvailable to be %s", want), func(ctx context.Context) error {
		class := &v1alpha1.ProxmoxNodeClass{}
		if err := p.kube.Get(ctx, client.ObjectKey{Name: p.name}, class); err != nil {
			return err
		}
		c := class.StatusConditions().Get(v1alpha1.ConditionAddressesAvailable)
		if c == nil || c.Status != want {
			return fmt.Errorf("it is %+v", c)
		}
		message = c.Message
		return nil
	})
	return message
}
