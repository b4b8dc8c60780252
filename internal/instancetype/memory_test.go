// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// sized returns the name of a type and the type itself.
func sized(cpus int, memoryMiB int64) instancetype.Type {
	return instancetype.Type{Name: fmt.Sprintf("c%d-m%d", cpus, memoryMiB), CPUs: cpus, MemoryBytes: memoryMiB * mib, Pods: 110, EphemeralBytes: 30 * gib}
}

// newSizedProvider returns a provider of the types. The fraction is the setting.
func newSizedProvider(v instancetype.Viewer, fraction *float64, types ...instancetype.Type) *instancetype.Provider {
	catalog := must(instancetype.NewCatalog(types))
	return must(instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Catalog: catalog, VMMemoryOverheadPercent: fraction}))
}

// observation returns what the Node of a VM from template 901 reports.
func observation(v *viewer, typ instancetype.Type, reportedKiB int64) instancetype.Observation {
	return instancetype.Observation{
		Image: ownership.ImageID(901, *v.configs[901]), InstanceType: typ.Name, CPUs: typ.CPUs, MemoryMiB: int(typ.MemoryBytes / mib),
		VM:       proxmox.VMConfig{Options: map[string]string{"memory": fmt.Sprint(typ.MemoryBytes / mib), "balloon": "0"}},
		Capacity: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(reportedKiB<<10, resource.BinarySI)},
	}
}

// memoryOf returns the memory that a Node of the type is expected to report.
func memoryOf(t testing.TB, p *instancetype.Provider, class *v1alpha1.ProxmoxNodeClass, typ instancetype.Type) int64 {
	t.Helper()
	return find(t, p.List(class, ""), typ.Name).Capacity.Memory().Value()
}

// TestMemoryEstimate holds the estimate to the guests in docs/real-guests.md.
func TestMemoryEstimate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	measured := map[int64]struct{ seabios, ovmf int64 }{1024: {967, 961}, 2048: {1973, 1967}, 4096: {3921, 3915}, 8192: {7947, 7941}, 16384: {15999, 15993}}
	var types []instancetype.Type
	for memory := range measured {
		types = append(types, sized(2, memory))
	}
	p := newSizedProvider(newViewer(), nil, types...)
	percent := newSizedProvider(newViewer(), new(0.075), types...)
	for _, typ := range types {
		want := measured[typ.MemoryBytes/mib]
		got := memoryOf(t, p, newNodeClass("east/pve1/901"), typ) / mib
		g.Expect(got).To(BeNumerically("<=", want.ovmf), typ.Name)
		g.Expect(float64(got)).To(BeNumerically(">=", 0.97*float64(want.seabios)), typ.Name)
		g.Expect(memoryOf(t, percent, newNodeClass("east/pve1/901"), typ)/mib).To(Equal(typ.MemoryBytes*925/1000/mib),
			"%s: the setting is not used", typ.Name)
	}
}

func TestLearn(t *testing.T) {
	t.Parallel()
	types := []instancetype.Type{sized(2, 2048), sized(2, 4096), sized(4, 5120), sized(8, 65536)}
	type overheads = []int64 // MiB, by type
	for name, c := range map[string]struct {
		observed overheads // 0 = no Node
		want     overheads // including the CPUs
	}{
		"less_than_estimated":       {overheads{0, 175}, overheads{98, 176, 224, 1433}},
		"more_than_estimated":       {overheads{0, 431}, overheads{327, 432, 453, 1662}},
		"only_large_sizes_use_more": {overheads{80, 431}, overheads{81, 432}},
		"smaller_VM_uses_more":      {overheads{500, 175}, overheads{501, 501, 627}},
	} {
		v := newViewer()
		p, class := newSizedProvider(v, nil, types...), newNodeClass("east/pve1/901")
		for n, overhead := range c.observed {
			if overhead > 0 {
				class.Status.MemoryOverhead = must(p.Learn(class, observation(v, types[n], (types[n].MemoryBytes/mib-overhead)<<10)))
			}
		}
		for n, want := range c.want {
			NewWithT(t).Expect((types[n].MemoryBytes-memoryOf(t, p, class, types[n]))/mib).To(Equal(want), "%s: %s", name, types[n].Name)
		}
	}
}

// expectError checks that an error contains the text, or that there is none if it is empty.
func expectError(t *testing.T, err error, text string) {
	t.Helper()
	if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("found error %v, want %q", err, text)
	}
}

// TestLearnImages: what VMs of one template report says nothing about another.
func TestLearnImages(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	typ := sized(2, 4096)
	v := newViewer()
	p, class := newSizedProvider(v, nil, typ), newNodeClass("east/pve1/901")
	estimated := memoryOf(t, p, class, typ)
	class.Status.MemoryOverhead = must(p.Learn(class, observation(v, typ, 3921<<10)))
	before := p.List(class, "")
	memory := func() int64 { return memoryOf(t, p, class, typ) }
	g.Expect(memory()).To(And(BeNumerically(">", estimated), BeNumerically("<=", 3921*mib)))
	g.Expect(&p.List(class, "")[0]).To(Equal(&before[0]), "an unchanged list was computed again")
	class.Status.SelectedZones = append(class.Status.SelectedZones, "east/pve2/902")
	g.Expect(memory()).To(Equal(estimated), "with a template that no Node has")
	more := observation(v, typ, 3000<<10)
	more.Image = ownership.ImageID(902, *v.configs[902])
	class.Status.MemoryOverhead = must(p.Learn(class, more))
	g.Expect(memory()).To(BeNumerically("<=", 3000*mib), "want the largest overhead of both")
	g.Expect(class.Status.MemoryOverhead).To(HaveLen(2))
	for _, option := range []string{"bios=ovmf", "machine=type=q35"} {
		v := newViewer()
		key, value, _ := strings.Cut(option, "=")
		v.configs[901].Options[key] = value
		v.publish()
		class := newNodeClass("east/pve1/901")
		class.Status.MemoryOverhead = []v1alpha1.MemoryOverhead{{Image: ownership.ImageID(901, *v.configs[901]), BIOS: "seabios", Machine: "pc",
			Sizes: []v1alpha1.MemoryOverheadSize{{MemoryMiB: 4096, OverheadMiB: 100}}}}
		p := newSizedProvider(v, nil, typ)
		g.Expect(memoryOf(t, p, class, typ)).To(Equal(estimated), "after the template got %s", option)
		seen := observation(v, typ, 3915<<10)
		seen.VM.Options[key] = value
		class.Status.MemoryOverhead = must(p.Learn(class, seen))
		g.Expect(memoryOf(t, p, class, typ)).To(And(BeNumerically(">", estimated), BeNumerically("<=", 3915*mib)), option)
		g.Expect(class.Status.MemoryOverhead).To(HaveLen(1), "without the unused image")
	}
}

// A VM from a slot template is one of the NodeClass's template on the same Host.
func TestLearnSlot(t *testing.T) {
	t.Parallel()
	v, typ := newViewer(), sized(2, 4096)
	p, class := newSizedProvider(v, nil, typ), newNodeClass("east/pve1/901")
	o := observation(v, typ, 3500<<10)
	o.Image = "950-0a1b2c"
	NewWithT(t).Expect(p.Learn(class, o)).Error().To(MatchError(instancetype.ErrImageUnused), "the image of another template")
	o.Slot = zone("east", "pve1")
	NewWithT(t).Expect(p.Learn(class, o)).To(ConsistOf(HaveField("Image", ownership.ImageID(901, *v.configs[901]))))
}

func TestLearnInvalid(t *testing.T) {
	t.Parallel()
	typ := sized(2, 4096)
	for name, c := range map[string]struct {
		change func(*instancetype.Observation)
		want   string
	}{
		"no_memory":      {func(o *instancetype.Observation) { o.Capacity = nil }, "the Node reports 0 MiB of memory, want less than the 4096 MiB of the VM"},
		"negative":       {reports("-1Gi"), "the Node reports -1024 MiB"},
		"all_memory":     {reports("4Gi"), "the Node reports 4096 MiB of memory, want less than the 4096 MiB"},
		"more_memory":    {reports("8Gi"), "the Node reports 8192 MiB"},
		"too_little":     {reports("2047Mi"), "the Node reports 2047 MiB of memory, want less than the 4096 MiB of the VM, and at least half of it"},
		"resized_VM":     {func(o *instancetype.Observation) { o.VM.Options["memory"] = "current=8192" }, "the VM has 8192 MiB of memory, and was launched with 4096 MiB"},
		"balloon":        {func(o *instancetype.Observation) { o.VM.Options["balloon"] = "1024" }, "the VM has the option balloon: 1024"},
		"other_image":    {func(o *instancetype.Observation) { o.Image = "older" }, "no template of the NodeClass has the image, firmware and machine type of the VM anymore: image older, seabios, pc"},
		"other_firmware": {func(o *instancetype.Observation) { o.VM.Options["bios"] = "ovmf" }, "anymore: image 901-"},
	} {
		v := newViewer()
		p, class := newSizedProvider(v, nil, typ), newNodeClass("east/pve1/901")
		o := observation(v, typ, 3921<<10)
		c.change(&o)
		learned, err := p.Learn(class, o)
		NewWithT(t).Expect(learned).To(BeEmpty(), name)
		expectError(t, err, c.want)
	}
}

func reports(memory string) func(*instancetype.Observation) {
	return func(o *instancetype.Observation) {
		o.Capacity = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	}
}

func TestLearnHugepages(t *testing.T) {
	t.Parallel()
	typ := sized(4, 16384)
	typ.Extra = corev1.ResourceList{"hugepages-1Gi": resource.MustParse("8Gi"), "example.com/device": resource.MustParse("1")}
	v := newViewer()
	p, class := newSizedProvider(v, nil, typ), newNodeClass("east/pve1/901")
	for _, c := range []struct{ reported, want, err string }{
		{"8Gi", "8Gi", ""},
		{"0", "8Gi", "the Node reports no hugepages-1Gi, want 8Gi; allocate the pages before the kubelet starts"},
		{"6Gi", "6Gi", ""},
		{"7Gi", "6Gi", ""},
	} {
		o := observation(v, typ, 16000<<10)
		o.Capacity["hugepages-1Gi"] = resource.MustParse(c.reported)
		var err error
		class.Status.MemoryOverhead, err = p.Learn(class, o)
		expectError(t, err, c.err)
		capacity := find(t, p.List(class, ""), typ.Name).Capacity
		pages, devices := capacity["hugepages-1Gi"], capacity["example.com/device"]
		NewWithT(t).Expect([]string{pages.String(), devices.String()}).To(Equal([]string{c.want, "1"}), "a Node reported %s", c.reported)
		NewWithT(t).Expect(class.Status.MemoryOverhead).To(HaveLen(1))
	}
}

// TestLearnProperties checks for random observations that no Node is expected to report more
// than a Node of the same size did, that order and restarts do not matter, and that what is
// stored stays small.
func TestLearnProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 18))
		fraction := []*float64{nil, new(0.0), new(0.075), new(0.3)}[random.IntN(4)]
		types := map[string]instancetype.Type{}
		for range 1 + random.IntN(30) {
			typ := sized(1+random.IntN(64), 512+int64(random.IntN(64))*[]int64{1, 256, 4096}[random.IntN(3)])
			types[typ.Name] = typ
		}
		var catalog []instancetype.Type
		var observed []instancetype.Observation
		v := newViewer()
		for _, typ := range types {
			catalog = append(catalog, typ)
			for range random.IntN(4) {
				memory := typ.MemoryBytes >> 10
				observed = append(observed, observation(v, typ, memory-1-random.Int64N(memory/[]int64{2, 10, 50}[random.IntN(3)])))
			}
		}
		p, class := newSizedProvider(v, fraction, catalog...), newNodeClass("east/pve1/901")
		for _, o := range observed {
			class.Status.MemoryOverhead = must(p.Learn(class, o))
		}
		checkLearned(t, seed, p, class, observed)

		random.Shuffle(len(observed), func(i, j int) { observed[i], observed[j] = observed[j], observed[i] })
		other, shuffled := newSizedProvider(v, fraction, catalog...), newNodeClass("east/pve1/901")
		for _, o := range observed {
			shuffled.Status.MemoryOverhead = must(other.Learn(shuffled, o))
		}
		if !reflect.DeepEqual(class.Status.MemoryOverhead, shuffled.Status.MemoryOverhead) {
			t.Fatalf("seed %d: the order matters: %+v, %+v", seed, class.Status, shuffled.Status)
		}
		restarted := &v1alpha1.ProxmoxNodeClass{}
		if err := json.Unmarshal(must(json.Marshal(class)), restarted); err != nil {
			t.Fatal(err)
		}
		fresh := newSizedProvider(v, fraction, catalog...)
		for _, typ := range catalog {
			if before, after := memoryOf(t, p, class, typ), memoryOf(t, fresh, restarted, typ); before != after {
				t.Fatalf("seed %d: %s has %d MiB before and %d MiB after a restart", seed, typ.Name, before/mib, after/mib)
			}
		}
	}
}

func checkLearned(t *testing.T, seed uint64, p *instancetype.Provider, class *v1alpha1.ProxmoxNodeClass, observed []instancetype.Observation) {
	t.Helper()
	g := NewWithT(t)
	for _, it := range p.List(class, "") {
		g.Expect(it.Capacity.Memory().Sign()).To(BeNumerically(">", 0), "seed %d: %s", seed, it.Name)
	}
	for _, o := range observed {
		g.Expect(find(t, p.List(class, ""), o.InstanceType).Capacity.Memory().Cmp(*o.Capacity.Memory())).To(BeNumerically("<=", 0),
			"seed %d: %s", seed, o.InstanceType)
	}
	for _, m := range class.Status.MemoryOverhead {
		g.Expect(len(m.Sizes)).To(BeNumerically("<=", v1alpha1.MaxMemoryOverheadSizes), "seed %d", seed)
	}
}

// TestExactSizeAfterLearning checks that a VM of exact size holds its pods with the memory
// that Nodes report.
func TestExactSizeAfterLearning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		overheadMiB int64
		want        string
	}{
		"estimated": {0, "e1.1VCPU-5GB"},
		"less":      {150, "e1.1VCPU-4864MB"},
		"more":      {900, "e1.1VCPU-5888MB"},
	} {
		v := newViewer()
		p := must(instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), VMSizePolicy: v1alpha1.VMSizeExact}))
		class := newNodeClass("east/pve1/901")
		if c.overheadMiB > 0 {
			class.Status.MemoryOverhead = must(p.Learn(class, observation(v, sized(2, 6144), (6144-c.overheadMiB)<<10)))
		}
		NewWithT(t).Expect(requestFor(p, class, newClaim("500m", "4Gi")).Options[0].InstanceType).To(Equal(c.want), name)
	}
}

// TestExactSizeHoldsRequestsAfterLearning checks that a VM of exact size holds what the Claim
// requests, whatever Nodes reported.
func TestExactSizeHoldsRequestsAfterLearning(t *testing.T) {
	t.Parallel()
	v := newViewer()
	for seed := range uint64(40) {
		p := must(instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), VMSizePolicy: v1alpha1.VMSizeExact}))
		random := rand.New(rand.NewPCG(seed, 18))
		class := newNodeClass("east/pve1/901")
		for range 1 + random.IntN(8) {
			typ := sized(1+random.IntN(16), 1024+256*random.Int64N(200))
			memory := typ.MemoryBytes >> 10
			class.Status.MemoryOverhead = must(p.Learn(class, observation(v, typ, memory-1-random.Int64N(memory/[]int64{2, 10, 50}[random.IntN(3)]))))
		}
		claim := newClaim(fmt.Sprintf("%dm", 100+random.IntN(7000)), fmt.Sprintf("%dMi", 100+random.IntN(30_000)))
		for _, option := range requestFor(p, class, claim).Options {
			it, ok := p.Get(class, option.InstanceType)
			if !ok || !resources.Fits(claim.Spec.Resources.Requests, it.Allocatable()) || option.Need.MemoryBytes < claim.Spec.Resources.Requests.Memory().Value() {
				t.Fatalf("seed %d: %s does not hold %s", seed, option.InstanceType, resources.String(claim.Spec.Resources.Requests))
			}
		}
	}
}

const mib = int64(1) << 20

// TestOverheadBySize holds the formulas of the package comment to their figures.
func TestOverheadBySize(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	list := p.List(newNodeClassWithAllHosts(), "")
	for name, want := range map[string]struct{ memory, kubeMilli, kubeMiB int64 }{
		"c1.1VCPU-2GB":    {1894, 60, 256},   // 10 % would be 205 MiB
		"s1.1VCPU-4GB":    {3788, 60, 410},   // 10 % of 4 GiB
		"c1.4VCPU-8GB":    {7577, 80, 615},   // + 5 % of 4 GiB
		"s1.4VCPU-16GB":   {15155, 80, 1024}, // + 5 % of 12 GiB
		"s1.8VCPU-32GB":   {30310, 90, 1352}, // + 2 % of 16 GiB
		"m1.16VCPU-128GB": {121241, 110, 3318},
	} {
		it := find(t, list, name)
		g.Expect(it.Capacity.Memory().Value()).To(Equal(want.memory*mib), name)
		kube := it.Overhead.KubeReserved
		g.Expect([]int64{kube.Cpu().MilliValue(), kube.Memory().Value()}).To(Equal([]int64{want.kubeMilli, want.kubeMiB * mib}), name)
		left := it.Allocatable()
		g.Expect(left.Memory().Value()).To(Equal((want.memory-want.kubeMiB-64-100)*mib), "%s leaves", name)
		g.Expect(left.Cpu().MilliValue()).To(Equal(it.Capacity.Cpu().MilliValue()-want.kubeMilli-10), "%s leaves", name)
	}
}

// TestCapacityPassesConsistencyCheck: Karpenter rejects a Node with less than 90 % of
// its claim's capacity. Guests lose between 2 and 15 % of their memory, and a typical
// image loses a boot and a firmware partition of its disk.
func TestCapacityPassesConsistencyCheck(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	for _, it := range p.List(newNodeClassWithAllHosts(), "") {
		typ, _ := instancetype.DefaultCatalog().Get(it.Name)
		g.Expect(float64(typ.MemoryBytes)*0.85).To(BeNumerically(">=", 0.9*it.Capacity.Memory().AsApproximateFloat64()),
			"%s claims %s of %d bytes", it.Name, it.Capacity.Memory(), typ.MemoryBytes)
		guestDisk := float64(typ.EphemeralBytes)*0.98 - float64(1200*mib)
		g.Expect(guestDisk).To(BeNumerically(">=", it.Capacity.StorageEphemeral().AsApproximateFloat64()), "%s claims", it.Name)
	}
}

func TestCapacityByNodeClass(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	class := newNodeClassWithAllHosts()
	class.Spec.BootDevice.Size = "100Gi"
	class.Spec.KubeletConfiguration = &v1alpha1.KubeletConfiguration{MaxPods: new(int32(42))}
	it := find(t, p.List(class, ""), "t1.2VCPU-6GB")
	g.Expect(it.Capacity.Pods().Value()).To(BeEquivalentTo(42), "want the kubelet's maxPods")
	g.Expect(it.Capacity.StorageEphemeral().Value()).To(Equal(93 * gib))
	left := it.Allocatable()
	g.Expect(left.StorageEphemeral().Value()).To(And(BeNumerically(">=", 83*gib), BeNumerically("<", 84*gib)), "want 10 % less for eviction")
	where := zone("east", "pve1")
	need, _ := p.Need(class, "pool", it.Name, where)
	g.Expect(need).To(And(HaveField("CPUs", 2), HaveField("MemoryBytes", 6*gib), HaveField("DiskBytes", 100*gib), HaveField("Storage", "local")))
	class.Spec.BootDevice.Size, class.Spec.BootDevice.Storage = "10G", "fast"
	need, _ = p.Need(class, "pool", it.Name, where)
	g.Expect(need).To(And(HaveField("DiskBytes", 30*gib), HaveField("Storage", "fast")), "want the larger disk of the type")
}

func TestOverheadFromFile(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	catalog := must(instancetype.Parse([]byte(goodFile)))
	p := must(instancetype.New(instancetype.Deps{Inventory: newViewer(), Pricing: pricing(), Catalog: catalog, VMMemoryOverheadPercent: new(0.0)}))
	list := p.List(newNodeClassWithAllHosts(), "")
	it := find(t, list, "t1.2VCPU-6GB")
	g.Expect(it.Capacity.Memory().Value()).To(Equal(6*gib), "without overhead the Node")
	left := it.Allocatable()
	g.Expect(left.Memory().Value()).To(Equal(6*gib - (384+64+100)*mib - gib))
	gpus := find(t, list, "gpu").Capacity["nvidia.com/gpu"]
	g.Expect(gpus.Value()).To(BeEquivalentTo(1), "the GPU is missing: %s", gpus.String())
}
