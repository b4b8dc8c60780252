// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer reply
		kind   error
		text   string
	}{
		"message_in_the_body": {
			answer: failed(500, "VM is locked (backup)"), kind: proxmox.ErrLocked, text: "VM is locked (backup)",
		},
		"reason_phrase_alone_as_before_8.4": {
			answer: reply{status: 500, reason: "can't lock file '/var/lock/qemu-server/lock-303.conf' - got timeout", body: `{"data":null}`},
			kind:   proxmox.ErrLocked, text: "lock-303.conf",
		},
		"nothing_was_started": {
			answer: failed(500, "got no worker upid - start worker failed"), kind: proxmox.ErrBusy, text: "no worker",
		},
		"host_away_595_with_an_empty_body": {
			answer: reply{status: 595, reason: "No route to host"}, kind: proxmox.ErrHostUnreachable, text: "No route to host",
		},
		"host_broke_off_596": {
			answer: reply{status: 596, reason: "Connection timed out"}, kind: proxmox.ErrUnknownOutcome, text: "Connection timed out",
		},
		"load_balancer": {
			answer: reply{status: 504, body: "<html>"}, kind: proxmox.ErrUnknownOutcome, text: "504",
		},
		"credentials": {
			answer: reply{status: 401, reason: "Authentication failed!"}, kind: proxmox.ErrUnauthorized, text: "Authentication failed!",
		},
		"answer_that_is_no_JSON": {
			answer: reply{status: 200, body: "<html>welcome</html>"}, kind: proxmox.ErrUnknownOutcome, text: "not a Proxmox VE API",
		},
		"answer_without_a_task": {
			answer: data(`null`), kind: proxmox.ErrUnknownOutcome, text: "instead of a task",
		},
		"redirect": {
			answer: reply{status: 301, body: ""}, kind: proxmox.ErrUnreachable, text: "301",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			c, host := clientOf(t, always(test.answer))
			_, err := c.CloneVM(testContext(t), proxmox.CloneRequest{Host: "pve1", TemplateID: 9001, VMID: 200})
			g.Expect(err).To(MatchError(test.kind))
			g.Expect(err.Error()).To(ContainSubstring(test.text))
			g.Expect(err.Error()).To(HavePrefix("cloning template 9001 on host pve1 to VM 200: "))
			g.Expect(err.Error()).NotTo(ContainSubstring("\n"))
			g.Expect(err.Error()).NotTo(ContainSubstring(testSecret))
			g.Expect(host.requests()).To(HaveLen(1), "a write is never repeated")
		})
	}
}

func TestErrorsForbidden(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, _ := clientOf(t, always(failed(403, "Permission check failed (/vms/9001, VM.Clone)")))
	_, err := c.CloneVM(testContext(t), proxmox.CloneRequest{Host: "pve1", TemplateID: 9001, VMID: 200})
	var forbidden *proxmox.ForbiddenError
	g.Expect(errors.As(err, &forbidden)).To(BeTrue(), "%v", err)
	g.Expect(forbidden.Path).To(Equal("/vms/9001"))
	g.Expect(forbidden.Privilege).To(Equal("VM.Clone"))
}

func TestErrorsInvalid(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, _ := clientOf(t, always(reply{status: 400, reason: "Parameter verification failed.",
		body: `{"data":null,"errors":{"tags":"invalid format - invalid characters in tag\n","cores":"value must have a minimum value of 1"},"message":"Parameter verification failed.\n"}`}))
	err := c.UpdateVM(testContext(t), "pve1", 200, proxmox.ConfigChange{Set: map[string]string{"tags": "=", "cores": "0"}})
	var invalid *proxmox.InvalidError
	g.Expect(errors.As(err, &invalid)).To(BeTrue(), "%v", err)
	g.Expect(invalid.Parameters).To(HaveKeyWithValue("cores", "value must have a minimum value of 1"))
	g.Expect(err.Error()).To(HaveSuffix("refused: cores: value must have a minimum value of 1; tags: invalid format - invalid characters in tag"))
}

func TestErrorsOfRead(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, _ := clientOf(t, always(reply{status: 596, reason: "Broken pipe"}))
	_, err := c.VMConfig(testContext(t), "pve1", 200)
	g.Expect(err).To(MatchError(proxmox.ErrHostUnreachable))
}

// A VM call that fails for a missing storage does not mean that the VM is missing.
func TestErrorsNotFound(t *testing.T) {
	t.Parallel()
	gone := failed(500, "Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist")
	noStorage := failed(500, "storage 'nfs' does not exist")
	for name, test := range map[string]struct {
		answer reply
		call   func(*testing.T, proxmox.Client) error
		kind   error
	}{
		"config_of_no_VM": {gone, func(t *testing.T, c proxmox.Client) error {
			_, err := c.VMConfig(testContext(t), "pve1", 200)
			return err
		}, proxmox.ErrNotFound},
		"destroying_with_a_storage_gone": {noStorage, func(t *testing.T, c proxmox.Client) error {
			_, err := c.DestroyVM(testContext(t), "pve1", 200)
			return err
		}, proxmox.ErrFailed},
		"listing_a_storage_that_is_gone": {noStorage, func(t *testing.T, c proxmox.Client) error {
			_, err := c.Volumes(testContext(t), "pve1", "nfs", "iso")
			return err
		}, proxmox.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := clientOf(t, always(test.answer))
			if err := test.call(t, c); !errors.Is(err, test.kind) {
				t.Errorf("found %v, want %v", err, test.kind)
			}
		})
	}
}

func TestErrorsEmptyPathParameter(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, host := clientOf(t, always(data(`{}`)))
	_, err := c.VMConfig(testContext(t), "", 200)
	g.Expect(err).To(MatchError(ContainSubstring("{node}")))
	_, err = c.DestroyVM(testContext(t), "pve1", 0)
	g.Expect(err).To(MatchError(ContainSubstring("{vmid}")))
	_, err = c.Task(testContext(t), "UPID:foo")
	g.Expect(err).To(MatchError(ContainSubstring("UPID:foo")))
	g.Expect(host.requests()).To(BeEmpty())
}

func TestSecret(t *testing.T) {
	t.Parallel()
	cfg := proxmox.ClusterConfig{Region: "dc1", TokenSecret: testSecret, Password: "letmein"}
	for _, text := range formatted(cfg) {
		if strings.Contains(text, testSecret) || strings.Contains(text, "letmein") {
			t.Errorf("found a secret in %s", text)
		}
	}
}

func formatted(v any) []string {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return []string{fmt.Sprint(v), fmt.Sprintf("%+v", v), fmt.Sprintf("%#v", v), string(encoded)}
}
