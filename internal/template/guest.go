// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Files in the guest of a builder VM.
const (
	cloudInitStatus = "/run/cloud-init/status.json"
	cloudInitOutput = "/var/log/cloud-init-output.log"
	// preparationFailed is written by boot data that continues after cloud-init has ended,
	// as that of the recipes does. It contains the cause.
	preparationFailed = "/run/karpenter-prepare-failed"
)

// guestFilePrivilege is what reading a file requires: in 8.4 the first one, later one of
// the others.
const guestFilePrivilege = "VM.Monitor|VM.GuestAgent.FileRead|VM.GuestAgent.Unrestricted"

const (
	// agentBackoff is the delay after an agent did not respond: the call blocks one of the
	// Host's few workers for three seconds.
	agentBackoff = time.Minute
	// maxGuestText limits texts of the guest. They are stored in the notes of the VM.
	maxGuestText = 300
)

// guestProgress is what the guest of a builder VM reports: what it does, or why it failed.
type guestProgress struct{ text, failure string }

// readGuest returns the progress that the guest of a builder VM reports: the status of cloud-init, and after
// cloud-init has ended the failure of what it started. Between two reads it returns the last progress, which
// is empty without the guest agent or the privilege for it.
func (r *hostReconciler) readGuest(ctx context.Context, existing Existing, status proxmox.VMStatus) guestProgress {
	if !r.canReadGuest(status) {
		return guestProgress{}
	}
	if text, _, held := r.guests.Get(r.HostKey); held {
		return guestProgress{text: text}
	}
	read := func(file string) string {
		content, err := r.client.GuestFile(ctx, r.Host, existing.VMID, file)
		if err != nil && !errors.Is(err, proxmox.ErrNotFound) {
			r.guests.Add(r.HostKey, "", agentBackoff)
		}
		return content // empty if cloud-init has not started, or nothing failed
	}
	progress, ended := parseCloudInit(read(cloudInitStatus))
	if progress.failure != "" {
		progress.failure += r.lastOutput(ctx, existing, status)
	} else if ended {
		if content := read(preparationFailed); content != "" {
			progress.failure = "its boot data reported a failure: " + tail(content)
		}
	}
	r.guests.Add(r.HostKey, progress.text, builderInterval)
	return progress
}

// canReadGuest reports whether files of a builder VM's guest can be read: its agent is
// enabled, and the token has the privilege.
func (r *hostReconciler) canReadGuest(status proxmox.VMStatus) bool {
	facts := r.inventory.View().Snapshots[r.Region].Facts
	return status.AgentEnabled && facts != nil && facts.Permissions != nil &&
		len(privileges.NewAccount(facts).Missing(privileges.OnVM(r.desired.Spec.ResourcePool, guestFilePrivilege))) == 0
}

// lastOutput returns the end of what the boot data of a builder VM printed, as the end of
// a sentence, or "" if that cannot be read.
func (r *hostReconciler) lastOutput(ctx context.Context, existing Existing, status proxmox.VMStatus) string {
	if !r.canReadGuest(status) {
		return ""
	}
	output, err := r.client.GuestFile(ctx, r.Host, existing.VMID, cloudInitOutput)
	if err != nil || strings.TrimSpace(output) == "" {
		return ""
	}
	return "; last output: " + tail(output)
}

// parseCloudInit returns the progress in cloud-init's status file, and whether cloud-init
// has ended. Errors of single modules fail the preparation when it has.
func parseCloudInit(content string) (progress guestProgress, ended bool) {
	var file struct {
		V1 struct {
			Stage         string         `json:"stage"`
			Local         cloudInitStage `json:"init-local"`
			Network       cloudInitStage `json:"init"`
			ModulesConfig cloudInitStage `json:"modules-config"`
			ModulesFinal  cloudInitStage `json:"modules-final"`
		} `json:"v1"`
	}
	if err := json.Unmarshal([]byte(content), &file); err != nil {
		return guestProgress{}, false // not cloud-init, or another format
	}
	v1 := file.V1
	var failed []string
	for _, stage := range []cloudInitStage{v1.Local, v1.Network, v1.ModulesConfig, v1.ModulesFinal} {
		failed = append(failed, stage.Errors...)
	}
	text := "cloud-init is running"
	if v1.Stage != "" {
		text += " stage " + tail(v1.Stage)
	}
	switch ended = v1.ModulesFinal.Finished > 0; {
	case ended && len(failed) > 0:
		return guestProgress{failure: "cloud-init failed: " + tail(strings.Join(failed, "; "))}, true
	case ended:
		return guestProgress{text: "cloud-init has finished"}, true
	case len(failed) > 0:
		text += fmt.Sprintf(", with errors: %s", tail(strings.Join(failed, "; ")))
	}
	return guestProgress{text: text}, false
}

// cloudInitStage is one stage in cloud-init's status file.
type cloudInitStage struct {
	Errors   []string `json:"errors"`
	Finished float64  `json:"finished"` // null until then
}

// tail returns the end of a guest's text in one line.
func tail(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text[max(len(text)-4*maxGuestText, 0):])
	runes := []rune(strings.Join(strings.Fields(text), " "))
	if len(runes) > maxGuestText {
		return "…" + string(runes[len(runes)-maxGuestText:])
	}
	return string(runes)
}
