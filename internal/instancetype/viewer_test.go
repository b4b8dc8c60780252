// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const gib = int64(1) << 30

var start = time.Date(2026, 11, 15, 8, 0, 0, 0, time.UTC)

// viewer is an inventory with content that tests modify.
type viewer struct {
	mu         sync.Mutex
	resources  map[string]*proxmox.Resources
	configs    map[int]*proxmox.VMConfig
	mappings   []proxmox.PCIMapping
	settings   declared.Settings
	sleeping   map[observed.HostName]declared.Sleep
	reserved   map[string]inventory.Reservation
	generation uint64
	current    inventory.View
}

// newViewer returns an inventory with the regions east (pve1, pve2, with templates 901
// and 902) and west (pve9, template 909): 16 CPUs and 64 GiB each, storage "local".
func newViewer() *viewer {
	v := &viewer{resources: map[string]*proxmox.Resources{}, configs: map[int]*proxmox.VMConfig{}}
	v.addHost("east", "pve1", 901, "host")
	v.addHost("east", "pve2", 902, "cputype=x86-64-v2-AES,flags=+aes")
	v.addHost("west", "pve9", 909, "")
	v.publish()
	return v
}

func (v *viewer) addHost(region, name string, template int, cpu string) {
	r := v.resources[region]
	if r == nil {
		r = &proxmox.Resources{}
		v.resources[region] = r
	}
	r.Hosts = append(r.Hosts, proxmox.HostRow{Name: name, Online: true, CPUs: 16, MemoryBytes: 65 * gib})
	r.Storages = append(r.Storages, proxmox.StorageRow{
		Name: "local", Host: name, Type: "dir", Content: []string{"images"}, Available: true, TotalBytes: 1000 * gib,
	})
	r.Guests = append(r.Guests, proxmox.GuestRow{VMID: template, Kind: proxmox.KindQEMU, Host: name, Status: "stopped", Template: true, MemoryBytes: gib})
	options := map[string]string{"scsi0": "local:base-1-disk-0,size=3G", "boot": "order=scsi0", "template": "1"}
	if cpu != "" {
		options["cpu"] = cpu
	}
	v.configs[template] = &proxmox.VMConfig{Options: options}
}

// change modifies the resources and publishes a new View.
func (v *viewer) change(f func(map[string]*proxmox.Resources)) {
	v.mu.Lock()
	f(v.resources)
	v.mu.Unlock()
	v.publish()
}

func (v *viewer) publish() {
	v.mu.Lock()
	defer v.mu.Unlock()
	snapshots := map[string]*observed.Snapshot{}
	for region, r := range v.resources {
		snapshots[region] = observed.NewSnapshot(observed.Result{Region: region, Resources: *r, Configs: v.configs, Mappings: v.mappings}, nil, observed.VMIDRange{})
	}
	v.generation++
	v.current = inventory.NewView(snapshots, nil, v.reserved, v.settings, declared.Records{Sleeping: v.sleeping})
	v.current.Generation = v.generation
}

func (v *viewer) View() inventory.View {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.current
}

func newNodeClass(selected ...string) *v1alpha1.ProxmoxNodeClass {
	return &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.ProxmoxNodeClassSpec{BootDevice: v1alpha1.BootDevice{Size: "30G"}},
		Status:     v1alpha1.ProxmoxNodeClassStatus{SelectedZones: selected},
	}
}

func newNodeClassWithAllHosts() *v1alpha1.ProxmoxNodeClass {
	return newNodeClass("east/pve1/901", "east/pve2/902", "west/pve9/909")
}

func newProvider(t testing.TB, v instancetype.Viewer) (*instancetype.Provider, *testclock.FakeClock) {
	t.Helper()
	clock := testclock.NewFakeClock(start)
	p, err := instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), VMMemoryOverheadPercent: new(0.075), Clock: clock})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return p, clock
}

// find returns the type with the name.
func find(t testing.TB, list []*cloudprovider.InstanceType, name string) *cloudprovider.InstanceType {
	t.Helper()
	for _, it := range list {
		if it.Name == name {
			return it
		}
	}
	t.Fatalf("no type %s in the list", name)
	return nil
}

// availability returns by Host whether the offerings of a type are available.
func availability(it *cloudprovider.InstanceType) map[string]bool {
	hosts := map[string]bool{}
	for _, o := range it.Offerings {
		hosts[o.Zone()] = o.Available
	}
	return hosts
}

// offered returns the Hosts of the offerings of a type; "!" precedes those where it is unavailable.
func offered(it *cloudprovider.InstanceType) string {
	var all []string
	for host, available := range availability(it) {
		if !available {
			host = "!" + host
		}
		all = append(all, host)
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(strings.Trim(a, "!"), strings.Trim(b, "!")) })
	return strings.Join(all, " ")
}

// offers returns where a provider offers a type.
func offers(t testing.TB, p *instancetype.Provider, class *v1alpha1.ProxmoxNodeClass, name string) string {
	t.Helper()
	return offered(find(t, p.List(class, ""), name))
}

// price returns the price of a type in a zone.
func price(t testing.TB, p *instancetype.Provider, class *v1alpha1.ProxmoxNodeClass, z placement.Zone) float64 {
	t.Helper()
	for _, o := range find(t, p.List(class, ""), oneType).Offerings {
		if o.Zone() == z.Host && o.Requirements.Get(corev1.LabelTopologyRegion).Has(z.Region) {
			return o.Price
		}
	}
	t.Fatalf("%s is not offered", z)
	return 0
}

// requestFor returns the request of a Claim without options.
func requestFor(p *instancetype.Provider, class *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim) placement.Request {
	return must(p.Request(class, claim, instancetype.RequestOptions{}))
}

// choose places a Claim.
func choose(v instancetype.Viewer, p *instancetype.Provider, class *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim) (placement.Placement, error) {
	return placement.Choose(v.View(), requestFor(p, class, claim))
}

// guest returns a running VM of another user.
func guest(vmid int, host string, cpus int) proxmox.GuestRow {
	return proxmox.GuestRow{VMID: vmid, Kind: proxmox.KindQEMU, Host: host, Status: "running", CPUs: cpus, MemoryBytes: gib}
}

func zone(region, host string) placement.Zone { return placement.Zone{Region: region, Host: host} }

func pricing() instancetype.Pricing {
	return instancetype.Pricing{PerVCPU: 0.025, PerGB: 0.001, PerNode: 0.005, PerDevice: 1}
}

func TestNewInvalidDeps(t *testing.T) {
	t.Parallel()
	for _, deps := range []instancetype.Deps{{}, {Inventory: newViewer(), VMMemoryOverheadPercent: new(7.5)}, {Inventory: newViewer(), VMMemoryOverheadPercent: new(-1.0)}} {
		NewWithT(t).Expect(instancetype.New(deps)).Error().To(HaveOccurred(), "%+v was accepted", deps)
	}
}
