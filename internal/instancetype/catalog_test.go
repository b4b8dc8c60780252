// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

func TestDefaultCatalog(t *testing.T) {
	t.Parallel()
	c := instancetype.DefaultCatalog()
	NewWithT(t).Expect(c.Types()).To(HaveLen(20))
	for name, want := range map[string]struct {
		family string
		cpus   int
		memory int64
		pods   int64
	}{
		"c1.1VCPU-2GB":    {"c1", 1, 2, 64},
		"t1.1VCPU-3GB":    {"t1", 1, 3, 110},
		"t1.2VCPU-6GB":    {"t1", 2, 6, 110},
		"s1.4VCPU-16GB":   {"s1", 4, 16, 110},
		"m1.2VCPU-16GB":   {"m1", 2, 16, 110},
		"m1.16VCPU-128GB": {"m1", 16, 128, 110},
	} {
		got, ok := c.Get(name)
		if !ok || got.Family != want.family || got.CPUs != want.cpus || got.MemoryBytes != want.memory*gib ||
			got.Pods != want.pods || got.EphemeralBytes != 30*gib {
			t.Errorf("%s is %+v (%v), want %+v", name, got, ok, want)
		}
	}
}

const goodFile = `[
 {"name": "t1.2VCPU-6GB", "capacity": {"cpu": "2", "memory": "6Gi", "pods": "110", "ephemeral-storage": "50Gi", "hugepages-2Mi": "1Gi"},
  "overhead": {"KubeReserved": {"cpu": "50m", "memory": "384Mi"}, "SystemReserved": {"cpu": "10m", "memory": "64Mi"},
               "EvictionThreshold": {"memory": "100Mi"}}},
 {"name": "gpu", "capacity": {"cpu": 8, "memory": 34359738368, "nvidia.com/gpu": 1}, "capacitytype": "spot"},
 {"name": "plain", "capacity": {"cpu": "4", "memory": "32Gi"}},
 {"name": "odd", "capacity": {"cpu": "4", "memory": "5Gi"}},
 {"name": "tiny", "capacity": {"cpu": "1", "memory": "1Gi"}}
]`

func TestParse(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, err := instancetype.Parse([]byte(goodFile))
	g.Expect(err).NotTo(HaveOccurred())
	t1, _ := c.Get("t1.2VCPU-6GB")
	if huge := t1.Extra[corev1.ResourceName("hugepages-2Mi")]; t1.EphemeralBytes != 50*gib || huge.Value() != gib ||
		t1.Overhead.KubeReserved.Cpu().MilliValue() != 50 || t1.Overhead.EvictionThreshold.Memory().Value() != 100<<20 {
		t.Errorf("t1 is %+v", t1)
	}
	gpu, _ := c.Get("gpu")
	if n := gpu.Extra["nvidia.com/gpu"]; n.Value() != 1 || gpu.CPUs != 8 || gpu.MemoryBytes != 32*gib || gpu.Pods != 110 || gpu.Overhead.KubeReserved != nil {
		t.Errorf("gpu is %+v", gpu)
	}
	if plain, _ := c.Get("plain"); !gpu.Spot || t1.Spot || plain.Spot {
		t.Errorf("spot are gpu %v, t1 %v, plain %v, want only gpu", gpu.Spot, t1.Spot, plain.Spot)
	}
	data, err := c.Encode()
	g.Expect(err).NotTo(HaveOccurred())
	if again, err := instancetype.Parse(data); err != nil || !again.Types()[1].Spot {
		t.Errorf("the encoded catalog has the types %+v (%v), want gpu as spot", again.Types(), err)
	}
	for name, family := range map[string]string{"t1.2VCPU-6GB": "t1", "gpu": "s1", "plain": "m1", "odd": "e1", "tiny": "e1"} {
		got, _ := c.Get(name)
		g.Expect(got.Family).To(Equal(family), "%s is of family", name)
	}
	tiny, _ := c.Get("tiny")
	g.Expect(tiny.Pods).To(BeEquivalentTo(32), "tiny takes")
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	const ok = `{"name": "a", "capacity": {"cpu": "1", "memory": "2Gi"}}`
	for name, c := range map[string]struct{ file, want string }{
		"invalid_JSON":       {`[{]`, "not a JSON array of instance types"},
		"no_array":           {`{"name": "a"}`, "not a JSON array of instance types"},
		"empty":              {`[]`, "found an empty array, want at least one instance type"},
		"unknown_key":        {`[` + ok + `, {"name": "b", "cpacity": {}}]`, `[1]: unknown field "cpacity"`},
		"unknown_overhead":   {`[{"name": "b", "overhead": {"KubReserved": {}}}]`, `[0]: unknown field "overhead.KubReserved"`},
		"duplicate_key":      {`[{"name": "b", "name": "c"}]`, `[0]: duplicate field "name"`},
		"duplicate_name":     {`[` + ok + `,` + ok + `]`, `[1].name: found "a" again, which entry 0 already has`},
		"no_name":            {`[{"capacity": {"cpu": "1", "memory": "2Gi"}}]`, `[0].name: found "", want the value of a Kubernetes label`},
		"invalid_name":       {`[{"name": "a b", "capacity": {"cpu": "1", "memory": "2Gi"}}]`, `[0].name: found "a b"`},
		"no_cpu":             {`[{"name": "a", "capacity": {"memory": "2Gi"}}]`, `[0].capacity.cpu (a): found none`},
		"zero_cpu":           {`[{"name": "a", "capacity": {"cpu": 0, "memory": "2Gi"}}]`, `[0].capacity.cpu (a): found none`},
		"fractional_cpu":     {`[{"name": "a", "capacity": {"cpu": "1500m", "memory": "2Gi"}}]`, `[0].capacity.cpu (a): found 1500m, want a whole number of vCPUs`},
		"negative_cpu":       {`[{"name": "a", "capacity": {"cpu": "-1", "memory": "2Gi"}}]`, `[0].capacity.cpu (a): found "-1", want a quantity`},
		"no_memory":          {`[{"name": "a", "capacity": {"cpu": "1"}}]`, `[0].capacity.memory (a): found 0 bytes, want at least`},
		"little_memory":      {`[{"name": "a", "capacity": {"cpu": "1", "memory": "4"}}]`, `[0].capacity.memory (a): found 0 bytes, want at least`},
		"not_a_number":       {`[{"name": "a", "capacity": {"cpu": "two", "memory": "2Gi"}}]`, `[0].capacity.cpu (a): found "two", want a quantity such as`},
		"exponent_too_small": {`[{"name": "a", "capacity": {"cpu": "1", "memory": "1e-999999999"}}]`, `[0].capacity.memory (a): found "1e-999999999", want a quantity`},
		"exponent_too_large": {`[{"name": "a", "capacity": {"cpu": "1", "memory": "1e99"}}]`, `[0].capacity.memory (a): found "1e99", want a quantity`},
		"null":               {`[{"name": "a", "capacity": {"cpu": null, "memory": "2Gi"}}]`, `[0].capacity.cpu (a): found null, want a quantity`},
		"unknown_resource":   {`[{"name": "a", "capacity": {"cpu": "1", "memory": "2Gi", "gpus": 1}}]`, `[0].capacity (a): resource "gpus" is unknown, want cpu, memory,`},
		"reserved":           {`[{"name": "a", "capacity": {"cpu": "1", "memory": "2Gi"}, "capacitytype": "reserved"}]`, `[0].capacitytype (a): found "reserved", want "on-demand" or "spot"`},
		"overhead_too_large": {`[{"name": "a", "capacity": {"cpu": "1", "memory": "2Gi"}, "overhead": {"SystemReserved": {"memory": "4Gi"}}}]`, `[0].overhead (a): found`},
		"tiny":               {`[{"name": "a", "capacity": {"cpu": "1", "memory": "300Mi"}}]`, `leaves nothing for pods`},
	} {
		_, err := instancetype.Parse([]byte(c.file))
		NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring(c.want), Not(ContainSubstring("\n")))), name)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(goodFile))
	f.Add([]byte(`[{"name": "a", "capacity": {"cpu": "1", "memory": "1e9"}}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := instancetype.Parse(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %q, want one line", err)
			}
			return
		}
		for _, typ := range c.Types() {
			if typ.CPUs < 1 || typ.MemoryBytes < 256<<20 || typ.Pods < 1 || typ.EphemeralBytes < 0 {
				t.Errorf("a VM with %d CPUs, %d bytes of memory, %d pods and %d bytes of disk was accepted", typ.CPUs, typ.MemoryBytes, typ.Pods, typ.EphemeralBytes)
			}
			if found, ok := c.Get(typ.Name); !ok || found.CPUs != typ.CPUs {
				t.Errorf("type %q is not found by its name", typ.Name)
			}
		}
	})
}

// Each mapping provides the one resource that the text assigns to it.
func FuzzParseDevices(f *testing.F) {
	f.Add("gpu-a100=nvidia.com/gpu,gpu-t4=nvidia.com/gpu")
	f.Add(" a=b/c ,, d=b/c=e")
	f.Fuzz(func(t *testing.T, text string) {
		devices, err := instancetype.ParseDevices(text)
		if err != nil {
			if !strings.Contains(err.Error(), "found") || !strings.Contains(err.Error(), "want") {
				t.Errorf("the error is %q, want what was found and what is allowed", err)
			}
			return
		}
		var entries []string
		for name, mappings := range devices {
			for _, mapping := range mappings {
				entries = append(entries, mapping+"="+string(name))
			}
		}
		again, err := instancetype.ParseDevices(strings.Join(entries, ","))
		if err != nil || !reflect.DeepEqual(devices, again) {
			t.Errorf("%q was read as %v, then as %v (%v)", text, devices, again, err)
		}
	})
}

func TestGenerate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var hosts []observed.Amount
		for range 1 + rng.IntN(4) {
			hosts = append(hosts, observed.Amount{CPUs: 2 * (1 + rng.IntN(64)), MemoryBytes: int64(4+rng.IntN(1000))*gib + rng.Int64N(gib)})
		}
		c := instancetype.Generate(hosts)
		for _, host := range hosts {
			for _, parts := range []int{1, 2} {
				if parts == 2 && host.MemoryBytes < 2*gib {
					continue
				}
				left := 1.0
				for _, typ := range c.Types() {
					if typ.CPUs*parts <= host.CPUs && typ.MemoryBytes*int64(parts) <= host.MemoryBytes {
						left = min(left, max(1-float64(typ.CPUs*parts)/float64(host.CPUs), 1-float64(typ.MemoryBytes*int64(parts))/float64(host.MemoryBytes)))
					}
				}
				// Less than a GiB of each part is lost to rounding.
				g.Expect(left).To(BeNumerically("<=", float64(int64(parts)*gib)/float64(host.MemoryBytes)),
					"seed %d: %d equal VMs leave %.0f %% of %+v unused", seed, parts, left*100, host)
			}
		}
		for _, typ := range c.Types() {
			fits := false
			for _, host := range hosts {
				fits = fits || (typ.CPUs <= host.CPUs && typ.MemoryBytes <= host.MemoryBytes)
			}
			g.Expect(fits).To(BeTrue(), "seed %d: %s fits on no Host of %v", seed, typ.Name, hosts)
		}
		again := must(instancetype.Parse(must(c.Encode())))
		for n, typ := range again.Types() {
			want := c.Types()[n]
			if typ.Extra = nil; !reflect.DeepEqual(typ, want) {
				t.Fatalf("seed %d: wrote %+v, read %+v", seed, want, typ)
			}
		}
	}
}
