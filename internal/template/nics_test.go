// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// The default name of an interface must not replace one that has this name.
func TestBuildInterfaceNames(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		" ":             "net0",
		" , ":           "net0,net1",
		"net3, ":        "net3,net1",
		" ,net0":        "net1,net0",
		"net1, ":        "net1,net0",
		"net1, , ":      "net1,net0,net2",
		"net2, , ":      "net2,net1,net0",
		" ,net0, ,net2": "net1,net0,net3,net2",
	} {
		t.Run(strings.ReplaceAll(spec, " ", "unnamed"), func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			object := &v1alpha1.ProxmoxTemplate{}
			for n, name := range strings.Split(spec, ",") {
				object.Spec.Network = append(object.Spec.Network, v1alpha1.NetworkInterface{
					Name: strings.TrimSpace(name), Bridge: fmt.Sprintf("vmbr%d", n), Model: "virtio", Address4: fmt.Sprintf("192.0.%d.0/24", n),
				})
			}
			options := template.PlannedConfig(template.NewDesired(object, nil), template.Location{}).Options
			for n, name := range strings.Split(want, ",") {
				g.Expect(options).To(HaveKeyWithValue(name, fmt.Sprintf("virtio,bridge=vmbr%d", n)))
				g.Expect(options).To(HaveKeyWithValue("ipconfig"+strings.TrimPrefix(name, "net"), fmt.Sprintf("ip=192.0.%d.0/24", n)))
			}
		})
	}
}
