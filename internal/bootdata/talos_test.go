// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

func TestRenderTalosRouting(t *testing.T) {
	t.Parallel()
	templates, values := recipe(t, "talos")
	for name, c := range map[string]struct {
		change func(*bootdata.Interface)
		want   string
	}{
		"table_of_a_route":        {func(i *bootdata.Interface) { i.Routes[1].Table = 1001 }, "Talos has the routing tables 1 to 252"},
		"table_of_a_rule":         {func(i *bootdata.Interface) { i.PolicyRoutes[0].Table = 254 }, "Talos has the routing tables 1 to 252"},
		"default_without_gateway": {func(i *bootdata.Interface) { i.Routes[1].Via = "" }, "Talos needs the gateway of a default route; set routes[].via"},
		"same_priority":           {func(i *bootdata.Interface) { i.PolicyRoutes[0].Priority = i.PolicyRoutes[1].Priority }, "Talos needs another priority for each RoutingRuleConfig"},
		"priority_of_KubeSpan":    {func(i *bootdata.Interface) { i.PolicyRoutes[0].Priority = 32500 }, "none of 32500 and 32501"},
	} {
		data := newData(t)
		data.Values = values
		c.change(&data.Network.Interfaces[1])
		NewWithT(t).Expect(bootdata.Render(templates, data)).Error().To(MatchError(ContainSubstring(c.want)), name)
	}
}

// TestRenderTalosKubelet: fields of spec.kubeletConfiguration that Talos rejects.
func TestRenderTalosKubelet(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	templates, values := recipe(t, "talos")
	for field, value := range map[string]string{
		"authentication": `{"anonymous": {"enabled": false}}`, "authorization": `{"mode": "Webhook"}`, "cgroupRoot": `"/"`, "kubeletCgroups": `"/kubelet"`,
		"port": `10250`, "protectKernelDefaults": `true`, "resolvConf": `"/etc/resolv.conf"`, "rotateCertificates": `true`, "systemCgroups": `"/system"`,
		"staticPodPath": `"/etc/pods"`, "seccompDefault": `true`,
	} {
		data := newData(t)
		data.Values = values
		g.Expect(json.Unmarshal([]byte(`{"`+field+`": `+value+`}`), &data.Kubernetes.KubeletConfiguration)).To(Succeed())
		_, err := bootdata.Render(templates, data)
		g.Expect(err).To(MatchError(And(HavePrefix("user-data: line "), ContainSubstring("Talos rejects "+field+" in machine.kubelet.extraConfig"),
			ContainSubstring("spec.kubeletConfiguration"))))
	}
}
