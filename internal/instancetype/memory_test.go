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
func newSizedProvider(t testing.TB, v instancetype.Viewer, fraction *float64, types ...instancetype.Type) *instancetype.Provider {
	t.Helper()
	catalog, err := instancetype.NewCatalog(types)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
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
	p := newSizedProvider(t, newViewer(), nil, types...)
	percent := newSizedProvider(t, newViewer(), new(0.075), types...)
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
	small, middle, large, huge := sized(2, 2048), sized(2, 4096), sized(4, 5120), sized(8, 65536)
	for name, c := range map[string]struct {
		overheadMiB map[string]int64 // by type
		want        map[string]int64 // overhead in MiB, including the CPUs
	}{
		"less_than_estimated": {map[string]int64{middle.Name: 175},
			map[string]int64{small.Name: 98, middle.Name: 176, large.Name: 224, huge.Name: 1433}},
		"more_than_estimated": {map[string]int64{middle.Name: 431},
			map[string]int64{small.Name: 327, middle.Name: 432, large.Name: 453, huge.Name: 1662}},
		"only_large_sizes_use_more": {map[string]int64{small.Name: 80, middle.Name: 431}, map[string]int64{small.Name: 81, middle.Name: 432}},
		"smaller_VM_uses_more": {map[string]int64{small.Name: 500, middle.Name: 175},
			map[string]int64{small.Name: 501, middle.Name: 501, large.Name: 627}},
	} {
		v := newViewer()
		p, class := newSizedProvider(t, v, nil, small, middle, large, huge), newNodeClass("east/pve1/901")
		for _, typ := range []instancetype.Type{small, middle, large, huge} {
			if overhead, ok := c.overheadMiB[typ.Name]; ok {
				class.Status.MemoryOverhead = must(p.Learn(class, observation(v, typ, (typ.MemoryBytes/mib-overhead)<<10)))
			}
		}
		for _, typ := range []instancetype.Type{small, middle, large, huge} {
			want, ok := c.want[typ.Name]
			if got := (typ.MemoryBytes - memoryOf(t, p, class, typ)) / mib; ok && got != want {
				t.Errorf("%s: %s has an overhead of %d MiB, want %d", name, typ.Name, got, want)
			}
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
	typ := sized(2, 4096)
	v := newViewer()
	p, class := newSizedProvider(t, v, nil, typ), newNodeClass("east/pve1/901")
	estimated := memoryOf(t, p, class, typ)
	class.Status.MemoryOverhead = must(p.Learn(class, observation(v, typ, 3921<<10)))
	before := p.List(class, "")
	if got := memoryOf(t, p, class, typ); got <= estimated || got > 3921*mib {
		t.Errorf("%d MiB after a Node reported 3921, want more than the estimated %d MiB", got/mib, estimated/mib)
	}
	NewWithT(t).Expect(&p.List(class, "")[0]).To(Equal(&before[0]), "an unchanged list was computed again")
	class.Status.SelectedZones = append(class.Status.SelectedZones, "east/pve2/902")
	if got := memoryOf(t, p, class, typ); got != estimated {
		t.Errorf("%d MiB with a template that no Node has, want the estimated %d MiB", got/mib, estimated/mib)
	}
	more := observation(v, typ, 3000<<10)
	more.Image = ownership.ImageID(902, *v.configs[902])
	class.Status.MemoryOverhead = must(p.Learn(class, more))
	if got := memoryOf(t, p, class, typ); got > 3000*mib || len(class.Status.MemoryOverhead) != 2 {
		t.Errorf("%d MiB and %d images, want the largest overhead of both", got/mib, len(class.Status.MemoryOverhead))
	}
	for _, option := range []string{"bios=ovmf", "machine=type=q35"} {
		v := newViewer()
		key, value, _ := strings.Cut(option, "=")
		v.configs[901].Options[key] = value
		v.publish()
		class := newNodeClass("east/pve1/901")
		class.Status.MemoryOverhead = []v1alpha1.MemoryOverhead{{Image: ownership.ImageID(901, *v.configs[901]), BIOS: "seabios", Machine: "pc",
			Sizes: []v1alpha1.MemoryOverheadSize{{MemoryMiB: 4096, OverheadMiB: 100}}}}
		p := newSizedProvider(t, v, nil, typ)
		if got := memoryOf(t, p, class, typ); got != estimated {
			t.Errorf("%d MiB after the template got %s, want the estimated %d MiB", got/mib, option, estimated/mib)
		}
		seen := observation(v, typ, 3915<<10)
		seen.VM.Options[key] = value
		class.Status.MemoryOverhead = must(p.Learn(class, seen))
		if got := memoryOf(t, p, class, typ); got > 3915*mib || got <= estimated || len(class.Status.MemoryOverhead) != 1 {
			t.Errorf("%d MiB and %d images with %s, want what the new Node reports, without the unused image", got/mib, len(class.Status.MemoryOverhead), option)
		}
	}
}

// A VM from a slot template is one of the NodeClass's template on the same Host.
func TestLearnSlot(t *testing.T) {
	t.Parallel()
	v, typ := newViewer(), sized(2, 4096)
	p, class := newSizedProvider(t, v, nil, typ), newNodeClass("east/pve1/901")
	o := observation(v, typ, 3500<<10)
	o.Image = "950-0a1b2c"
	NewWithT(t).Expect(p.Learn(class, o)).Error().To(MatchError(instancetype.ErrImageUnused), "the image of another template")
	o.Slot = zone("east", "pve1")
	learned, err := p.Learn(class, o)
	if err != nil || len(learned) != 1 || learned[0].Image != ownership.ImageID(901, *v.configs[901]) {
		t.Errorf("learned %v: %v", learned, err)
	}
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
		p, class := newSizedProvider(t, v, nil, typ), newNodeClass("east/pve1/901")
		o := observation(v, typ, 3921<<10)
		c.change(&o)
		learned, err := p.Learn(class, o)
		NewWithT(t).Expect(len(learned)).To(BeNumerically("<=", 0), "%s: learned", name)
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
	p, class := newSizedProvider(t, v, nil, typ), newNodeClass("east/pve1/901")
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
		it := find(t, p.List(class, ""), typ.Name)
		if got := it.Capacity["hugepages-1Gi"]; got.Cmp(resource.MustParse(c.want)) != 0 || len(class.Status.MemoryOverhead) != 1 {
			t.Errorf("%s of hugepages after a Node reported %s, want %s", got.String(), c.reported, c.want)
		}
		if got := it.Capacity["example.com/device"]; got.Value() != 1 {
			t.Errorf("the type lost its device: %s", got.String())
		}
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
		p, class := newSizedProvider(t, v, fraction, catalog...), newNodeClass("east/pve1/901")
		for _, o := range observed {
			class.Status.MemoryOverhead = must(p.Learn(class, o))
		}
		checkLearned(t, seed, p, class, observed)

		random.Shuffle(len(observed), func(i, j int) { observed[i], observed[j] = observed[j], observed[i] })
		other, shuffled := newSizedProvider(t, v, fraction, catalog...), newNodeClass("east/pve1/901")
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
		fresh := newSizedProvider(t, v, fraction, catalog...)
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
		request := must(p.Request(class, newClaim("500m", "4Gi"), instancetype.RequestOptions{}))
		NewWithT(t).Expect(request.Options[0].InstanceType).To(Equal(c.want), "%s: 4Gi of pods get a", name)
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
		request := must(p.Request(class, claim, instancetype.RequestOptions{}))
		for _, option := range request.Options {
			it, ok := p.Get(class, option.InstanceType)
			if !ok || !resources.Fits(claim.Spec.Resources.Requests, it.Allocatable()) || option.Need.MemoryBytes < claim.Spec.Resources.Requests.Memory().Value() {
				t.Fatalf("seed %d: %s does not hold %s", seed, option.InstanceType, resources.String(claim.Spec.Resources.Requests))
			}
		}
	}
}
