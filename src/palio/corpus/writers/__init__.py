"""Writers of foreign formats: each trajectory becomes rows and an exact list of losses."""
