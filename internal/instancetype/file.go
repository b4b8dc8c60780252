// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// minMemoryBytes is the memory of the smallest VM that boots Linux with a kubelet.
const minMemoryBytes = 256 * mib

// plainQuantity rejects extreme exponents, which the parser would process for minutes.
var plainQuantity = regexp.MustCompile(`^"?[0-9]{1,18}(\.[0-9]{1,9})?(m|k|[KMGTP]i?|[eE][0-9]{1,2})?"?$`)

// fileEntry is a type in the file. The overhead's keys are capitalized for compatibility
// with the files of earlier providers.
type fileEntry struct {
	Name         string                     `json:"name"`
	Capacity     map[string]json.RawMessage `json:"capacity"`
	CapacityType string                     `json:"capacitytype"`
	Overhead     struct {
		KubeReserved      map[string]json.RawMessage
		SystemReserved    map[string]json.RawMessage
		EvictionThreshold map[string]json.RawMessage
	} `json:"overhead"`
}

// Parse parses the content of an instance-types file: a JSON array of
//
//	{"name": "t1.2VCPU-6GB", "capacity": {"cpu": "2", "memory": "6Gi", "pods": "110", "ephemeral-storage": "30Gi"},
//	 "capacitytype": "on-demand",
//	 "overhead": {"KubeReserved": {...}, "SystemReserved": {...}, "EvictionThreshold": {...}}}
func Parse(data []byte) (Catalog, error) {
	var raw []json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return Catalog{}, fmt.Errorf("not a JSON array of instance types: %w", err)
	}
	if len(raw) == 0 {
		return Catalog{}, errors.New("found an empty array, want at least one instance type")
	}
	types := make([]Type, 0, len(raw))
	for n := range raw {
		t, err := parseEntry(raw[n])
		if err != nil {
			return Catalog{}, fmt.Errorf("[%d]%w", n, err)
		}
		types = append(types, t)
	}
	return NewCatalog(types)
}

// parseEntry parses one type. Its errors start with the field: ".capacity.cpu: ...".
func parseEntry(raw json.RawMessage) (Type, error) {
	var e fileEntry
	problems, err := kjson.UnmarshalStrict(raw, &e)
	if err := errors.Join(append(problems, err)...); err != nil {
		return Type{}, fmt.Errorf(": %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if problems := validation.IsValidLabelValue(e.Name); e.Name == "" || len(problems) > 0 {
		return Type{}, fmt.Errorf(".name: found %q, want the value of a Kubernetes label, such as t1.2VCPU-6GB", e.Name)
	}
	if !slices.Contains([]string{"", karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot}, e.CapacityType) {
		return Type{}, fmt.Errorf(".capacitytype (%s): found %q, want %q or %q", e.Name, e.CapacityType, karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot)
	}
	t, err := parseCapacity(e)
	if err != nil {
		return Type{}, err
	}
	t.Spot = e.CapacityType == karpv1.CapacityTypeSpot
	for _, part := range []struct {
		key  string
		raw  map[string]json.RawMessage
		into *corev1.ResourceList
	}{
		{".overhead.KubeReserved", e.Overhead.KubeReserved, &t.Overhead.KubeReserved},
		{".overhead.SystemReserved", e.Overhead.SystemReserved, &t.Overhead.SystemReserved},
		{".overhead.EvictionThreshold", e.Overhead.EvictionThreshold, &t.Overhead.EvictionThreshold},
	} {
		if *part.into, err = parseResources(part.key, e.Name, part.raw); err != nil {
			return Type{}, err
		}
	}
	return t, checkAllocatable(t)
}

func parseCapacity(e fileEntry) (Type, error) {
	capacity, err := parseResources(".capacity", e.Name, e.Capacity)
	if err != nil {
		return Type{}, err
	}
	t := Type{Name: e.Name, Extra: corev1.ResourceList{}, EphemeralBytes: defaultEphemeralBytes}
	for name, quantity := range capacity {
		switch name {
		case corev1.ResourceCPU:
			if quantity.MilliValue()%1000 != 0 || quantity.Value() > math.MaxInt16 {
				return Type{}, fmt.Errorf(".capacity.cpu (%s): found %s, want a whole number of vCPUs", e.Name, quantity.String())
			}
			t.CPUs = int(quantity.Value())
		case corev1.ResourceMemory:
			t.MemoryBytes = quantity.Value() / mib * mib
		case corev1.ResourcePods:
			t.Pods = quantity.Value()
		case corev1.ResourceEphemeralStorage:
			t.EphemeralBytes = quantity.Value()
		default:
			t.Extra[name] = quantity
		}
	}
	if t.CPUs == 0 {
		return Type{}, fmt.Errorf(".capacity.cpu (%s): found none, want a whole number of vCPUs such as \"2\"", e.Name)
	}
	if t.MemoryBytes < minMemoryBytes {
		return Type{}, fmt.Errorf(".capacity.memory (%s): found %d bytes, want at least %d, such as \"4Gi\"", e.Name, t.MemoryBytes, minMemoryBytes)
	}
	if t.Pods == 0 {
		t.Pods = defaultPods(t.MemoryBytes)
	}
	t.Family = familyOf(t.Name, t.CPUs, t.MemoryBytes)
	return t, nil
}

// parseResources parses quantities; it returns nil if the file has none.
func parseResources(field, name string, raw map[string]json.RawMessage) (corev1.ResourceList, error) {
	if raw == nil {
		return nil, nil
	}
	list := make(corev1.ResourceList, len(raw))
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		if !isResource(key) {
			return nil, fmt.Errorf("%s (%s): resource %q is unknown, want cpu, memory, pods, ephemeral-storage, hugepages-<size> or <domain>/<name>",
				field, name, key)
		}
		var q resource.Quantity
		if !plainQuantity.Match(raw[key]) || json.Unmarshal(raw[key], &q) != nil || q.Cmp(resource.MustParse("1Pi")) > 0 {
			return nil, fmt.Errorf("%s.%s (%s): found %s, want a quantity such as \"2\" or \"4Gi\", not negative", field, key, name, raw[key])
		}
		list[corev1.ResourceName(key)] = q
	}
	return list, nil
}

func isResource(key string) bool {
	switch corev1.ResourceName(key) {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(key, corev1.ResourceHugePagesPrefix) ||
		(strings.Contains(key, "/") && len(validation.IsQualifiedName(key)) == 0)
}

// checkAllocatable returns an error if the overhead leaves nothing for pods.
func checkAllocatable(t Type) error {
	overhead := t.overhead(t.EphemeralBytes)
	total := overhead.Total()
	if total.Memory().Value() >= t.MemoryBytes || total.Cpu().MilliValue() >= int64(t.CPUs)*1000 {
		return fmt.Errorf(".overhead (%s): found %s CPU and %s memory in total, which leaves nothing for pods",
			t.Name, total.Cpu(), total.Memory())
	}
	return nil
}
