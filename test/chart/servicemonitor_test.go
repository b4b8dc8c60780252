// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// TestServiceMonitor follows the ServiceMonitor as Prometheus does: by labels to the Service,
// and by port name to the port of the pods. Its CRD belongs to the Prometheus operator, so the
// test checks the field names itself.
func TestServiceMonitor(t *testing.T) {
	t.Parallel()
	rendered := render(t, "metrics: {enabled: true, type: serviceMonitor, port: 9090, serviceMonitorLabels: {release: prom}}")
	monitor, service, deployment := rendered.only(t, "ServiceMonitor"), rendered.only(t, "Service"), rendered.only(t, "Deployment")
	if monitor.GetAPIVersion() != "monitoring.coreos.com/v1" {
		t.Errorf("the ServiceMonitor has API version %s", monitor.GetAPIVersion())
	}
	spec, _, err := unstructured.NestedMap(monitor.Object, "spec")
	check(t, err)
	known := map[string]bool{"selector": true, "endpoints": true, "namespaceSelector": true, "jobLabel": true}
	for key := range spec {
		if !known[key] {
			t.Errorf("the ServiceMonitor has an unknown field spec.%s", key)
		}
	}
	matchLabels, _, err := unstructured.NestedStringMap(spec, "selector", "matchLabels")
	check(t, err)
	if len(matchLabels) == 0 || !labels.SelectorFromSet(matchLabels).Matches(labels.Set(service.GetLabels())) || monitor.GetNamespace() != service.GetNamespace() {
		t.Errorf("the ServiceMonitor selects %v in %s, the Service has %v in %s", matchLabels, monitor.GetNamespace(), service.GetLabels(), service.GetNamespace())
	}
	selected, _, err := unstructured.NestedStringMap(service.Object, "spec", "selector")
	check(t, err)
	pods, _, err := unstructured.NestedStringMap(deployment.Object, "spec", "template", "metadata", "labels")
	check(t, err)
	if !labels.SelectorFromSet(selected).Matches(labels.Set(pods)) {
		t.Errorf("the Service selects %v, the pods have %v", selected, pods)
	}
	port := rendered.read(t, "ServiceMonitor", "{.spec.endpoints[0].port}")
	target := rendered.read(t, "Service", `{.spec.ports[?(@.name=="`+port+`")].targetPort}`)
	number := rendered.read(t, "Deployment", container+`.ports[?(@.name=="`+target+`")].containerPort}`)
	if number != "9090" || rendered.read(t, "ServiceMonitor", "{.spec.endpoints[0].path}") != "/metrics" {
		t.Errorf("port %q of the ServiceMonitor is %q of the Service and %q of the pods, want 9090", port, target, number)
	}
}

func (o objects) only(t *testing.T, kind string) *unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for _, object := range o {
		if object.GetKind() == kind {
			found = append(found, object)
		}
	}
	if len(found) != 1 {
		t.Fatalf("the chart renders %d objects of kind %s, want 1", len(found), kind)
	}
	return found[0]
}
