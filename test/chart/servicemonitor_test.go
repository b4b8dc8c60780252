// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"sigs.k8s.io/yaml"
)

// TestServiceMonitor follows the ServiceMonitor as Prometheus does: by labels to the Service,
// and by port name to the port of the pods. Its CRD belongs to the Prometheus operator, so the
// test checks the field names itself.
func TestServiceMonitor(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rendered := render(t, "metrics: {enabled: true, type: serviceMonitor, port: 9090, serviceMonitorLabels: {release: prom}}")
	// read returns an object or a string.
	read := func(kind, path string) (value any) {
		t.Helper()
		check(t, yaml.Unmarshal([]byte(rendered.read(t, kind, path)), &value))
		return value
	}
	// contain matches labels that a selector matches.
	contain := func(selector any) types.GomegaMatcher {
		var all []types.GomegaMatcher
		for key, value := range selector.(map[string]any) {
			all = append(all, HaveKeyWithValue(key, value))
		}
		g.Expect(all).NotTo(BeEmpty())
		return And(all...)
	}
	g.Expect(read("ServiceMonitor", "{.apiVersion}")).To(Equal("monitoring.coreos.com/v1"))
	for key := range read("ServiceMonitor", "{.spec}").(map[string]any) {
		g.Expect(key).To(BeElementOf("selector", "endpoints", "namespaceSelector", "jobLabel"))
	}
	g.Expect(read("Service", "{.metadata.labels}")).To(contain(read("ServiceMonitor", "{.spec.selector.matchLabels}")))
	g.Expect(read("Service", "{.metadata.namespace}")).To(Equal(read("ServiceMonitor", "{.metadata.namespace}")))
	g.Expect(read("Deployment", "{.spec.template.metadata.labels}")).To(contain(read("Service", "{.spec.selector}")))
	port := rendered.read(t, "ServiceMonitor", "{.spec.endpoints[0].port}")
	target := rendered.read(t, "Service", `{.spec.ports[?(@.name=="`+port+`")].targetPort}`)
	g.Expect(rendered.read(t, "Deployment", container+`.ports[?(@.name=="`+target+`")].containerPort}`)).To(Equal("9090"))
	g.Expect(rendered.read(t, "ServiceMonitor", "{.spec.endpoints[0].path}")).To(Equal("/metrics"))
}
