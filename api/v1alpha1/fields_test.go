// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

func TestDiskSizeBytes(t *testing.T) {
	t.Parallel()

	for size, want := range map[v1alpha1.DiskSize]int64{
		"":         0,
		"0G":       0,
		"30G":      30_000_000_000,
		"30Gi":     30 << 30,
		"2T":       2_000_000_000_000,
		"2Ti":      2 << 40,
		"999999Ti": 999_999 << 40,
	} {
		if got, err := size.Bytes(); err != nil || got != want {
			t.Errorf("%q is %d bytes (%v), want %d", size, got, err, want)
		}
	}

	for _, size := range []v1alpha1.DiskSize{"G", "30X", "-30G", "large", "99999999999Ti"} {
		if got, err := size.Bytes(); err == nil || !strings.Contains(err.Error(), string(size)) {
			t.Errorf("%q is %d bytes, error %v; want an error that contains the size", size, got, err)
		}
	}
}

func TestCPUFlagsUnmarshalJSON(t *testing.T) {
	t.Parallel()

	for text, want := range map[string][]string{
		`null`:                 nil,
		`[]`:                   {},
		`["+aes","-pcid"]`:     {"+aes", "-pcid"},
		`"+pdpe1gb"`:           {"+pdpe1gb"},
		`"+aes;-pcid"`:         {"+aes", "-pcid"},
		`"+aes, -pcid  +ssbd"`: {"+aes", "-pcid", "+ssbd"},
	} {
		var flags v1alpha1.CPUFlags
		if err := json.Unmarshal([]byte(text), &flags); err != nil || !slices.Equal(flags, want) {
			t.Errorf("%s was read as %q (%v), want %q", text, flags, err, want)
		}
	}

	for _, text := range []string{`5`, `true`, `{}`, `[1]`} {
		var flags v1alpha1.CPUFlags
		if err := json.Unmarshal([]byte(text), &flags); err == nil {
			t.Errorf("%s was read as %q, want an error", text, flags)
		}
	}
}

func FuzzCPUFlags(f *testing.F) {
	f.Add([]byte(`"+aes;-pcid"`))
	f.Add([]byte(`["+aes"]`))
	f.Add([]byte(`{}`))

	f.Fuzz(func(t *testing.T, data []byte) {
		var flags v1alpha1.CPUFlags
		if err := json.Unmarshal(data, &flags); err != nil {
			return
		}

		written, err := json.Marshal(flags)
		if err != nil {
			t.Fatalf("%s was read as %q, which cannot be written: %v", data, flags, err)
		}

		var again v1alpha1.CPUFlags
		if err := json.Unmarshal(written, &again); err != nil || !slices.Equal(flags, again) {
			t.Errorf("%s was read as %q, written as %s and read as %q (%v)", data, flags, written, again, err)
		}
	})
}

func TestWellKnownLabels(t *testing.T) {
	t.Parallel()

	for _, label := range []string{
		v1alpha1.LabelInstanceFamily, v1alpha1.LabelInstanceCPU, v1alpha1.LabelInstanceMemory, v1alpha1.LabelInstanceCPUType, v1alpha1.LabelInstanceImageID,
	} {
		if !karpv1.WellKnownLabels.Has(label) {
			t.Errorf("%s is not well-known to Karpenter, so a NodePool cannot require it", label)
		}
	}

	if err := karpv1.IsRestrictedLabel(v1alpha1.Group + "/made-up"); err == nil {
		t.Errorf("a NodePool may set labels in the domain %s", v1alpha1.Group)
	}
}

// An object that is created in Go must not set unset structs, or the API server's defaults would not apply, regardless of
// the encoder.
func TestMarshalOmitsUnsetStructs(t *testing.T) {
	t.Parallel()

	converted, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.ProxmoxNodeClass{})
	if err != nil {
		t.Fatal(err)
	}

	if len(converted) != 0 {
		t.Errorf("an empty class is converted to %v, want an empty map", converted)
	}

	written, err := json.Marshal(&v1alpha1.ProxmoxTemplate{})
	if err != nil {
		t.Fatal(err)
	}

	if string(written) != "{}" {
		t.Errorf("an empty template is written as %s, want {}", written)
	}
}

func TestStatusConditionsReady(t *testing.T) {
	t.Parallel()

	class := nodeClass()
	conditions := class.StatusConditions()

	for _, condition := range conditions.List() {
		if condition.Type == conditions.Root().Type {
			continue
		}

		if conditions.Root().IsTrue() {
			t.Errorf("the class is ready before %s is true", condition.Type)
		}

		conditions.SetTrue(condition.Type)
	}

	if !conditions.Root().IsTrue() {
		t.Errorf("the class is not ready although all conditions are true: %v", class.GetConditions())
	}
}
