// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

const gib = int64(1) << 30

// fleet is a Cluster whose view a test can update.
type fleet struct {
	resources  proxmox.Resources
	configs    map[int]*proxmox.VMConfig
	generation uint64
	view       inventory.View
}

func (h *fleet) View() inventory.View { return h.view }

func (h *fleet) publish() {
	snapshot := observed.NewSnapshot(observed.Result{Region: "r", Resources: h.resources, Configs: h.configs}, nil, observed.VMIDRange{})
	h.generation++
	h.view = inventory.NewView(map[string]*observed.Snapshot{"r": snapshot}, nil, nil, declared.Settings{}, declared.Records{})
	h.view.Generation = h.generation
}

// newFleet returns hosts, instance types and 5 NodeClasses.
func newFleet(t *testing.T, hosts int, catalog instancetype.Catalog) (*fleet, *instancetype.Provider, []*v1alpha1.ProxmoxNodeClass) {
	t.Helper()
	h := &fleet{configs: map[int]*proxmox.VMConfig{}}
	var zones []string
	for n := range hosts {
		name, vmid := fmt.Sprint("pve", n), 900+n
		h.resources.Hosts = append(h.resources.Hosts, proxmox.HostRow{Name: name, Online: true, CPUs: 64, MemoryBytes: 512 * gib})
		h.resources.Storages = append(h.resources.Storages, proxmox.StorageRow{Name: "local", Host: name, Type: "dir", Content: []string{"images"}, Available: true, TotalBytes: 4000 * gib})
		h.resources.Guests = append(h.resources.Guests, proxmox.GuestRow{VMID: vmid, Kind: proxmox.KindQEMU, Host: name, Status: "stopped", Template: true, MemoryBytes: gib})
		h.configs[vmid] = &proxmox.VMConfig{Options: map[string]string{"scsi0": "local:base-disk,size=3G", "boot": "order=scsi0", "template": "1"}}
		zones = append(zones, fmt.Sprintf("r/%s/%d", name, vmid))
	}
	h.publish()
	provider, err := instancetype.New(instancetype.Deps{Inventory: h, Pricing: operator.DefaultOptions().Pricing(), Catalog: catalog, VMMemoryOverheadPercent: operator.DefaultOptions().VMMemoryOverheadPercent})
	testenv.Must(t, err)
	var classes []*v1alpha1.ProxmoxNodeClass
	for n := range 5 {
		class := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("class", n)}}
		class.Spec.BootDevice.Size = "30G"
		class.Status.SelectedZones = zones
		classes = append(classes, class)
	}
	return h, provider, classes
}

// fastest returns the shortest of several runs in hash units. Load and slower machines lengthen
// both the run and the unit.
func fastest(runs int, before, f func()) float64 {
	shortest, unit := time.Hour, time.Hour
	for range runs {
		unit = min(unit, timeHashes())
		if before != nil {
			before()
		}
		began := time.Now()
		f()
		shortest = min(shortest, time.Since(began))
	}
	return shortest.Seconds() / unit.Seconds()
}

// timeHashes returns the duration of one hash unit: 5,000 SHA-256 hashes, each stored in a map.
func timeHashes() time.Duration {
	began := time.Now()
	sum := sha256.Sum256(nil)
	seen := map[[32]byte]int{}
	for n := range 5000 {
		sum = sha256.Sum256(sum[:])
		seen[sum] = n
	}
	return time.Since(began)
}

// TestLargeFleet measures 100 hosts, 60 instance types and 5 NodeClasses.
func TestLargeFleet(t *testing.T) {
	var types []instancetype.Type
	for n := range 60 {
		types = append(types, instancetype.Type{Name: fmt.Sprint("t", n), Family: "t", CPUs: 1 + n, MemoryBytes: int64(1+n) * 4 * gib, Pods: 110, EphemeralBytes: 30 * gib})
	}
	catalog, err := instancetype.NewCatalog(types)
	testenv.Must(t, err)
	h, provider, classes := newFleet(t, 100, catalog)
	all := func() {
		for _, class := range classes {
			provider.List(class, "")
		}
	}
	all()
	checkCount(t, "allocations of an unchanged list", testing.AllocsPerRun(100, all))
	checkTime(t, "unchanged list, hash units", fastest(20, nil, all)/float64(len(classes)))
	checkExactLists(t)
	online := true
	checkTime(t, "full refresh of all lists, hash units", fastest(10, func() {
		online = !online
		h.resources.Hosts[0].Online = online
		h.publish()
	}, all))

	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	request, err := provider.Request(classes[0], claim, instancetype.RequestOptions{})
	testenv.Must(t, err)
	checkTime(t, "choose a place, hash units", fastest(20, nil, func() {
		if _, err := placement.Choose(h.View(), request); err != nil {
			t.Error(err)
		}
	}))
	for n := range request.Options {
		request.Options[n].Need.CPUs += 100
	}
	checkTime(t, "choose where nothing fits, hash units", fastest(20, nil, func() {
		if _, err := placement.Choose(h.View(), request); err == nil {
			t.Error("an option fits")
		}
	}))
}

// checkExactLists measures the list that GetInstanceTypes returns for an unchanged inventory, with
// Nodes of many exact sizes, and the request of a NodeClaim.
func checkExactLists(t *testing.T) {
	t.Helper()
	_, provider, classes := newFleet(t, 100, instancetype.DefaultCatalog())
	exact, catalog := classes[0], classes[1]
	exact.Spec.VMSize.Policy, catalog.Spec.VMSize.Policy = v1alpha1.VMSizeExact, v1alpha1.VMSizeInstanceType
	list := func() {
		testenv.Must(t, provider.RefreshNodes(nodesOfExactSizes))
		provider.List(exact, poolName)
	}
	list()
	checkTime(t, "unchanged list with exact sizes, hash units", fastest(20, nil, list))
	took := time.Hour
	for range 100 {
		began := time.Now()
		list()
		took = min(took, time.Since(began)) // load on the machine affects the mean
	}
	if took > time.Millisecond {
		t.Errorf("an unchanged list takes %s, want less than 1ms", took)
	}
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("100Mi")}
	request := func(class *v1alpha1.ProxmoxNodeClass) float64 {
		return fastest(20, nil, func() {
			_, err := provider.Request(class, claim, instancetype.RequestOptions{})
			testenv.Must(t, err)
		})
	}
	checkTime(t, "request of an exact size over that of the catalog", request(exact)/request(catalog))
}

// nodesOfExactSizes returns the Claims of Nodes of 50 exact sizes.
func nodesOfExactSizes() ([]karpv1.NodeClaim, error) {
	claims := make([]karpv1.NodeClaim, 50)
	for n := range claims {
		claims[n].Labels = map[string]string{corev1.LabelInstanceTypeStable: fmt.Sprintf("e1.%dVCPU-%dMB", 1+n%10, 1280+512*n)}
	}
	return claims, nil
}
