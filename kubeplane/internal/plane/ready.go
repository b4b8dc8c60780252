// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const pollInterval = 50 * time.Millisecond

// poll calls until the result is nil. When ctx ends first, it returns the last error and why the wait ended.
func poll(ctx context.Context, what string, ask func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last error: %w)", what, context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// healthy authenticates as the administrator: until its roles exist, the API server answers others with "forbidden".
func healthy(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s%s", url, response.Status, complaints(string(body)))
		}
		return nil
	}
}

// complaints leaves the checks out that passed, of which a readiness report has dozens.
func complaints(report string) string {
	var all strings.Builder
	for line := range strings.Lines(report) {
		if !strings.HasPrefix(line, "[+]") {
			all.WriteString("; " + strings.TrimSpace(line))
		}
	}
	return all.String()
}

// podsAdmissible: without its namespace's default service account, every pod is refused.
func podsAdmissible(client kubernetes.Interface) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return errors.New("the controller manager has not made it yet")
		}
		return err
	}
}

// Report is what the ready file holds, as JSON.
type Report struct {
	// Kubeconfig is the path of a self-contained administrator's kubeconfig.
	Kubeconfig string `json:"kubeconfig"`
	// Server is the URL of the API server.
	Server string `json:"server"`
	// CAFile is the path of the certificate that signed the API server's.
	CAFile string `json:"caFile"`
	// Dir is the plane's directory; the logs are in its logs directory.
	Dir string `json:"dir"`
	// PIDs of the components by name, and of kubeplane itself.
	PIDs map[string]int `json:"pids"`
}

// write lets the file appear whole or not at all: readers poll for it.
func (r Report) write(file string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the ready file: %w", err)
	}
	partial := fmt.Sprintf("%s.%d", file, os.Getpid())
	if err := os.WriteFile(partial, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the ready file: %w", err)
	}
	if err := os.Rename(partial, file); err != nil {
		return fmt.Errorf("writing the ready file: %w", err)
	}
	return nil
}
