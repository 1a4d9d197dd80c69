package api

import (
	_ "embed"
	"net/http"

	"github.com/labstack/echo/v4"
)

//go:embed openapi.yaml
var document []byte

// Document is the OpenAPI document of the API, in YAML. Tests hold every route and every answer to it.
func Document() []byte { return document }

func readDocument(c echo.Context) error {
	return c.Blob(http.StatusOK, "application/yaml", document)
}
