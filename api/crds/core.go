// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Core returns Karpenter's CustomResourceDefinitions as YAML, by file name. Where Karpenter restricts labels of its own
// domain, Core adds a rule that restricts those of this provider: pods that select an unknown label would stay pending
// without an error. It fails if Karpenter's CRDs contain no such rule.
func Core() (map[string][]byte, error) {
	out := map[string][]byte{
		"karpenter.sh_nodepools.yaml":               karpapis.NodePoolCRD,
		"karpenter.sh_nodeclaims.yaml":              karpapis.NodeClaimCRD,
		"karpenter.sh_nodeoverlays.yaml":            karpapis.NodeOverlayCRD,
		"autoscaling.x-k8s.io_capacitybuffers.yaml": karpapis.CapacityBufferCRD,
	}
	restricted := 0
	for name, content := range out {
		var tree map[string]any
		if err := yaml.Unmarshal(content, &tree); err != nil {
			return nil, fmt.Errorf("decoding Karpenter's %s: %w", name, err)
		}
		added := restrictLabels(tree)
		if added == 0 {
			continue
		}
		restricted += added
		content, err := yaml.Marshal(tree)
		if err != nil {
			return nil, fmt.Errorf("encoding Karpenter's %s: %w", name, err)
		}
		out[name] = append([]byte("---\n"), content...)
	}
	if restricted == 0 {
		return nil, fmt.Errorf("restricting labels of %s: Karpenter's CRDs contain no rule %q", v1alpha1.Group, coreMessage)
	}
	return out, nil
}

const coreMessage = `label domain "` + karpapis.Group + `" is restricted`

// listInRule matches the list of permitted labels in a CEL rule.
var listInRule = regexp.MustCompile(`\[[^\]^]*\]`)

// restrictLabels adds to every rule for Karpenter's label domain one for this provider's, and returns their number.
func restrictLabels(tree any) int {
	added := 0
	switch tree := tree.(type) {
	case map[string]any:
		if rules, ok := tree["x-kubernetes-validations"].([]any); ok {
			if own := ownRule(rules); own != nil {
				tree["x-kubernetes-validations"] = append(rules, own)
				added++
			}
		}
		for _, key := range slices.Sorted(maps.Keys(tree)) {
			added += restrictLabels(tree[key])
		}
	case []any:
		for _, item := range tree {
			added += restrictLabels(item)
		}
	}
	return added
}

// ownRule returns a copy of Karpenter's rule with the domain and labels of this provider, or nil if there is no such rule.
func ownRule(rules []any) map[string]any {
	for _, item := range rules {
		rule, _ := item.(map[string]any)
		expression, _ := rule["rule"].(string)
		if rule["message"] != coreMessage {
			continue
		}
		expression = listInRule.ReplaceAllLiteralString(expression, "["+permittedLabels()+"]")
		expression = strings.ReplaceAll(expression, `endsWith("`+karpapis.Group+`")`, `endsWith("`+v1alpha1.Group+`")`)
		return map[string]any{"message": `label domain "` + v1alpha1.Group + `" is restricted`, "rule": expression}
	}
	return nil
}

func permittedLabels() string {
	labels := []string{strconv.Quote(v1alpha1.LabelNodeClass)}
	for label := range karpv1.WellKnownLabels {
		if strings.HasPrefix(label, v1alpha1.Group+"/") {
			labels = append(labels, strconv.Quote(label))
		}
	}
	slices.Sort(labels)
	return strings.Join(labels, ", ")
}
