// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

func TestParseProviderID(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.Expect(v1alpha1.ParseProviderID("proxmox://Region-1/20001")).To(Equal(v1alpha1.ProviderID{Region: "Region-1", VMID: 20001}))

	for text, want := range map[string]string{
		"":                               "want proxmox://<region>/<vmid>",
		"aws:///eu-west-1a/i-123":        "want proxmox://<region>/<vmid>",
		"proxmox://":                     "want proxmox://<region>/<vmid>",
		"proxmox://region":               "want proxmox://<region>/<vmid>",
		"proxmox:///101":                 "region is empty",
		"proxmox://region/":              `VMID "" is not a plain number`,
		"proxmox://region/0101":          `VMID "0101" is not a plain number`,
		"proxmox://region/+101":          `VMID "+101" is not a plain number`,
		"proxmox://region/101 ":          `VMID "101 " is not a plain number`,
		"proxmox://region/101/extra":     `VMID "101/extra" is not a plain number`,
		"proxmox://region/99":            "VMID 99 is not between 100 and 999999999",
		"proxmox://region/1000000000":    "VMID 1000000000 is not between 100 and 999999999",
		"proxmox://region/-101":          "VMID -101 is not between",
		"proxmox://re gion/101":          `region "re gion" cannot be a label value`,
		"PROXMOX://region/101":           "want proxmox://<region>/<vmid>",
		"proxmox://region/9999999999999": "VMID 9999999999999 is not between",
	} {
		g.Expect(v1alpha1.ParseProviderID(text)).Error().To(MatchError(ContainSubstring(want)), text)
	}
}

func FuzzParseProviderID(f *testing.F) {
	f.Add("proxmox://region/20000")
	f.Add("proxmox://Region_1.a/100")
	f.Add("proxmox:///1")
	f.Add("proxmox://region/0020000")

	f.Fuzz(func(t *testing.T, text string) {
		id, err := v1alpha1.ParseProviderID(text)
		if err != nil {
			return
		}

		if id.String() != text {
			t.Errorf("%q was read as %+v, which is written as %q", text, id, id)
		}

		if again, err := v1alpha1.ParseProviderID(id.String()); err != nil || again != id {
			t.Errorf("%q was read as %+v, then as %+v (%v)", text, id, again, err)
		}
	})
}

func TestParseTemplateZone(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	g.Expect(v1alpha1.ParseTemplateZone("Region-1/PVE1/9000")).To(And(
		Equal(v1alpha1.TemplateZone{Region: "Region-1", Host: "PVE1", VMID: 9000}), HaveField("Zone()", "Region-1/PVE1"),
	))

	for text, want := range map[string]string{
		"":                "want <region>/<host>/<vmid>",
		"region/host":     "want <region>/<host>/<vmid>",
		"a/b/100/d":       "want <region>/<host>/<vmid>",
		"/host/100":       "region is empty",
		"region//100":     `host ""`,
		"region/a_b/100":  `host "a_b"`,
		"region/host/abc": `VMID "abc" is not a plain number`,
	} {
		g.Expect(v1alpha1.ParseTemplateZone(text)).Error().To(MatchError(ContainSubstring(want)), text)
	}
}

func FuzzParseTemplateZone(f *testing.F) {
	f.Add("region/pve1/9000")
	f.Add("a/b/c")

	f.Fuzz(func(t *testing.T, text string) {
		if zone, err := v1alpha1.ParseTemplateZone(text); err == nil && zone.String() != text {
			t.Errorf("%q was read as %+v, which is written as %q", text, zone, zone)
		}
	})
}
