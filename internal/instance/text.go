// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// Metadata returns what boot data templates, tags and the description can refer to. Tags
// are not set.
func Metadata(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in Intent) bootdata.Metadata {
	return bootdata.Metadata{
		Hostname: NodeName(claim, in), InstanceID: strconv.Itoa(in.VMID), InstanceUUID: string(claim.UID),
		InstanceType: in.InstanceType, ProviderID: in.ProviderID(), Region: in.Region, Zone: in.Host,
		NodeClass: class.Name, NodePool: claim.Labels[karpv1.NodePoolLabelKey],
	}
}

// validTag matches the tags that Proxmox accepts, up to the length that NodeClasses allow.
var validTag = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9_+.-]{0,123}$`)

// RenderTags returns the tags of a VM. Tags that render to nothing are omitted. It fails if
// an expression cannot be evaluated, or its result is not a valid tag.
func RenderTags(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in Intent) ([]string, error) {
	var tags []string
	for n, source := range class.Spec.Tags {
		if !IsExpression(source) {
			tags = append(tags, source)
			continue
		}
		tag, err := bootdata.RenderText(fmt.Sprintf("spec.tags[%d]", n), source, Metadata(claim, class, in))
		if err != nil {
			return nil, err
		}
		if tag = strings.TrimSpace(tag); tag == "" {
			continue
		}
		if !validTag.MatchString(tag) {
			return nil, fmt.Errorf("spec.tags[%d] %q renders to %q, which is not a tag: a tag has up to 124 letters, digits and the characters _ + . -, and begins with a letter, a digit or _; "+
				"use functions like lower and replace", n, source, tag)
		}
		tags = append(tags, tag)
	}
	return tags, nil
}

// IsExpression reports whether a text contains expressions to evaluate.
func IsExpression(text string) bool { return strings.Contains(text, "{{") }

// maxDescription is far below the 8192 characters that Proxmox allows for all notes.
const maxDescription = 4096

// RenderDescription returns the user's part of a VM's notes. It fails if an expression
// cannot be evaluated, or its result could be confused with the ownership mark.
func RenderDescription(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in Intent) (string, error) {
	text, err := bootdata.RenderText("spec.description", class.Spec.Description, Metadata(claim, class, in))
	switch {
	case err != nil:
		return "", err
	case len(text) > maxDescription:
		return "", fmt.Errorf("spec.description renders to %d bytes, the limit is %d", len(text), maxDescription)
	case strings.Contains(text, "<!--"):
		return "", fmt.Errorf("spec.description contains %q: comments are reserved for the ownership mark of the VM", "<!--")
	}
	return strings.TrimSpace(text), nil
}
