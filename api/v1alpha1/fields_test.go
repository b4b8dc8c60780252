// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

func TestDiskSizeBytes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)

	for size, want := range map[v1alpha1.DiskSize]int64{
		"":         0,
		"0G":       0,
		"30G":      30_000_000_000,
		"30Gi":     30 << 30,
		"2T":       2_000_000_000_000,
		"2Ti":      2 << 40,
		"999999Ti": 999_999 << 40,
	} {
		g.Expect(size.Bytes()).To(Equal(want), string(size))
	}

	for _, size := range []v1alpha1.DiskSize{"G", "30X", "-30G", "large", "99999999999Ti"} {
		g.Expect(size.Bytes()).Error().To(MatchError(ContainSubstring(string(size))))
	}
}

func TestCPUFlagsUnmarshalJSON(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)

	for text, want := range map[string][]string{
		`null`:                 nil,
		`[]`:                   {},
		`["+aes","-pcid"]`:     {"+aes", "-pcid"},
		`"+pdpe1gb"`:           {"+pdpe1gb"},
		`"+aes;-pcid"`:         {"+aes", "-pcid"},
		`"+aes, -pcid  +ssbd"`: {"+aes", "-pcid", "+ssbd"},
	} {
		var flags v1alpha1.CPUFlags
		g.Expect(json.Unmarshal([]byte(text), &flags)).To(Succeed(), text)
		g.Expect(slices.Equal(flags, want)).To(BeTrue(), "%s was read as %q", text, flags)
	}

	for _, text := range []string{`5`, `true`, `{}`, `[1]`} {
		var flags v1alpha1.CPUFlags
		g.Expect(json.Unmarshal([]byte(text), &flags)).NotTo(Succeed(), text)
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
	g := NewWithT(t)

	for _, label := range []string{
		v1alpha1.LabelInstanceFamily, v1alpha1.LabelInstanceCPU, v1alpha1.LabelInstanceMemory, v1alpha1.LabelInstanceCPUType, v1alpha1.LabelInstanceImageID,
	} {
		g.Expect(karpv1.WellKnownLabels.Has(label)).To(BeTrue(), "a NodePool cannot require %s", label)
	}

	g.Expect(karpv1.IsRestrictedLabel(v1alpha1.Group + "/made-up")).NotTo(Succeed())
}

// An object that is created in Go must not set unset structs, or the API server's defaults would not apply, regardless of
// the encoder.
func TestMarshalOmitsUnsetStructs(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	g.Expect(runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.ProxmoxNodeClass{})).To(BeEmpty())
	g.Expect(json.Marshal(&v1alpha1.ProxmoxTemplate{})).To(MatchJSON("{}"))
}

func TestStatusConditionsReady(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	conditions := nodeClass().StatusConditions()

	for _, condition := range conditions.List() {
		if condition.Type == conditions.Root().Type {
			continue
		}

		g.Expect(conditions.Root().IsTrue()).To(BeFalse(), "%s is not true yet", condition.Type)
		conditions.SetTrue(condition.Type)
	}

	g.Expect(conditions.Root().IsTrue()).To(BeTrue())
}
