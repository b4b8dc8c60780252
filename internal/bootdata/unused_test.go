// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// TestUnusedSettings checks that the recipes use all settings of interfaces that their format can express.
func TestUnusedSettings(t *testing.T) {
	t.Parallel()
	automatic6 := []string{"defaultRoute, for IPv6,"}
	for name, want := range map[string][]string{
		"kubeadm": automatic6, "k3s": automatic6, "rke2": automatic6,
		"talos":   {"defaultRoute", "defaultRoute, for IPv6,"},
		"flatcar": nil, "fedora-coreos": nil,
	} {
		templates, data := recipeData(t, name)
		NewWithT(t).Expect(unusedFields(t, templates, data)).To(Equal(want), name)
	}
}

func TestUnusedSettingsOfTemplates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		templates bootdata.Templates
		nic       bootdata.Interface
		want      []string
	}{
		"nothing_set":              {bootdata.Templates{NetworkConfig: "version: 2"}, bootdata.Interface{}, nil},
		"routes":                   {bootdata.Templates{NetworkConfig: "version: 2"}, bootdata.Interface{Routes: []bootdata.Route{{To: "10.0.0.0/8"}}}, []string{"routes"}},
		"user_data_does_not_count": {bootdata.Templates{NetworkConfig: "version: 2", UserData: "#cloud-config\n{{ toYaml . }}"}, bootdata.Interface{NameServers: []string{"1.1.1.1"}}, []string{"dnsServers"}},
		"Talos_reads_user_data":    {bootdata.Templates{UserData: "version: v1alpha1\nmachine: {type: worker}\n"}, bootdata.Interface{Metric4: 5}, []string{"metric"}},
		"metric_of_SLAAC":          {bootdata.Templates{}, bootdata.Interface{SLAAC: true, Metric6: 5}, []string{"metric, for IPv6,"}},
		"table":                    {bootdata.Templates{NetworkConfig: "x: {{ range .Interfaces }}{{ range .Routes }}{{ .To }}{{ .Metric }}{{ end }}{{ end }}"}, bootdata.Interface{Routes: []bootdata.Route{{To: "10.0.0.0/8", Metric: 1, Table: 5}}}, []string{"routes[].table"}},
	} {
		data := bootdata.Data{Network: bootdata.Network{Interfaces: []bootdata.Interface{c.nic}}}
		NewWithT(t).Expect(unusedFields(t, c.templates, data)).To(Equal(c.want), name)
	}
}

func unusedFields(t *testing.T, templates bootdata.Templates, data bootdata.Data) []string {
	t.Helper()
	g := NewWithT(t)
	files := render(t, templates, data)
	unused, err := bootdata.UnusedSettings(func(d bootdata.Data) (bootdata.Files, error) { return bootdata.Render(templates, d) }, data, files)
	g.Expect(err).NotTo(HaveOccurred())
	var fields []string
	for _, setting := range unused {
		fields = append(fields, setting.Field)
	}
	return fields
}
